package host

import "syscall"

// machineBytes returns the size of memory and swap.
func machineBytes() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return maxBytes
	}
	total := (float64(info.Totalram) + float64(info.Totalswap)) * float64(info.Unit)
	return int64(min(total, maxBytes))
}
