// Package dtype holds the number formats of tensors: their names and sizes, the exact rounding
// into and out of each, and the byte order of block-scale factors.
//
// DType names a format. NAMEEncode and NAMEDecode (BF16Encode, E4M3Decode, ...) handle one value;
// Encode, Decode and Convert handle slices of bytes, EncodeBF16, DecodeBF16, EncodeF16 and DecodeF16
// slices of codes. FactorLayout places scale factors in the blocks that tensor cores read.
//
// Every encoding starts from float32 and rounds once, to nearest with ties to even (E8M0 rounds up).
// Subnormals are exact in both directions: nothing is flushed to zero. NaN becomes one canonical code
// of each format; signs of zeros are kept.
//
//	format     bits  values                                  overflow           NaN
//	bf16, f16  16    IEEE 754 style                          to Inf             0x7fff
//	e4m3       8     S.EEEE.MMM, bias 7, no Inf, max 448     to +-448, Inf too  0x7f
//	e5m2       8     S.EEEEE.MM, bias 15, max 57344          to +-57344, Inf too 0x7f
//	e2m1       4     S.EE.M, bias 1: 0 .5 1 1.5 2 3 4 6      to +-6, Inf too    +6
//	e8m0       8     2^(code-127), no sign, no zero          to 2^127           0xff
//
// Multi-byte values are little endian. Two e2m1 codes share a byte, the even index in the low nibble.
//
// Errors wrap ErrFormat (a format that the operation does not take) or ErrLength (slices whose lengths
// do not belong together). Nothing here keeps state: all of it may be called from several goroutines,
// on slices that do not overlap.
package dtype
