package gorgop

import "testing"

// everywhere are the tests that hold on every device.
var everywhere = []struct {
	name string
	test func(*testing.T)
}{
	{"Gradients", TestLayer_Gradients},
	{"Trains", TestLayer_Trains},
	{"ProgramWeights", TestLayer_ProgramWeights},
	{"Handle", TestLayer_Handle},
	{"BFloat16", TestLayer_BFloat16},
	{"TwiceInOneGraph", TestLayer_TwiceInOneGraph},
	{"TwoLayersTwoGraphs", TestLayer_TwoLayersTwoGraphs},
	{"EvalMode", TestLayer_EvalMode},
	{"Transposed", TestLayer_Transposed},
	{"Dropout", TestLayer_Dropout},
	{"Closed", TestLayer_Closed},
	{"MemoryConstant", TestLayer_MemoryConstant},
}

// TestAsync: what holds on the host holds on a device whose memory Go cannot reach and whose replays are only issued.
func TestAsync(t *testing.T) {
	device = "async"
	defer func() { device = "host" }()
	for _, c := range everywhere {
		if c.name == "MemoryConstant" || c.name == "Trains" && testing.Short() {
			continue // the pauses take their time
		}
		t.Run(c.name, c.test)
	}
}
