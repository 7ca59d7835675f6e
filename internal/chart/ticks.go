package chart

import (
	"fmt"
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// manyTicks is about how many an axis gets.
const manyTicks = 7

// stepTicks marks training steps: whole numbers, from ten thousand on in k, from a million on in M.
func stepTicks(low, high float64) []plot.Tick {
	return ticksEvery(max(1, niceInterval(high-low)), low, high, func(step float64) string {
		switch {
		case step >= 1e6:
			return fmt.Sprintf("%gM", step/1e6)
		case step >= 1e4:
			return fmt.Sprintf("%gk", step/1e3)
		}
		return fmt.Sprintf("%g", step)
	})
}

// valueTicks marks values, all with the same number of decimals.
func valueTicks(low, high float64) []plot.Tick {
	interval := niceInterval(high - low)
	decimals := max(0, -int(math.Floor(math.Log10(interval)+1e-9)))
	return ticksEvery(interval, low, high, func(value float64) string {
		return strconv.FormatFloat(value, 'f', decimals, 64)
	})
}

func ticksEvery(interval, low, high float64, label func(float64) string) []plot.Tick {
	var ticks []plot.Tick
	for i := math.Ceil(low/interval - 1e-9); i*interval <= high+1e-9*interval; i++ {
		ticks = append(ticks, plot.Tick{Value: i * interval, Label: label(i*interval + 0)}) // + 0: no -0
	}
	return ticks
}

// niceInterval is 1, 2 or 5 times a power of ten, a manyTicks-th of span or a little more.
func niceInterval(span float64) float64 {
	least := span / manyTicks
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, times := range []float64{1, 2, 5} {
		if times*power >= least {
			return times * power
		}
	}
	return 10 * power
}
