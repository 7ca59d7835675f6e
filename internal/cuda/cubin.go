package cuda

import "encoding/binary"

// cubinArch returns the architecture times ten, such as 90, that a cubin was compiled for; 0 where the image is no
// cubin. A cubin is a 64-bit ELF file of machine 190 (EM_CUDA) whose flags hold the architecture: in the lowest byte
// up to version 7 of the ABI (CUDA 12), one byte higher from version 8 on (CUDA 13).
func cubinArch(image []byte) int {
	const (
		abiAt, machineAt, flagsAt = 8, 18, 48
		machineCUDA               = 190
	)
	if len(image) < 64 || string(image[:4]) != "\x7fELF" || image[4] != 2 {
		return 0
	}
	if binary.LittleEndian.Uint16(image[machineAt:]) != machineCUDA {
		return 0
	}
	flags := binary.LittleEndian.Uint32(image[flagsAt:])
	if image[abiAt] >= 8 {
		flags >>= 8
	}
	return int(flags & 0xff)
}
