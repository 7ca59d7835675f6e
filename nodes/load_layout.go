package nodes

import (
	"encoding/binary"

	"github.com/moegraph/moegraph/dtype"
)

// loadTensor is a tensor of the checkpoint.
type loadTensor struct {
	name  string
	shape []int
	dt    dtype.DType
	data  []byte // a view of the mapping
}

// loadPart is a share of a tensor in a block of a variable: the matrix of some of the block's rows.
type loadPart struct {
	tensor *loadTensor
	at     int             // first element in the tensor
	rows   int             // of the block that it makes up
	row    func(i int) int // which row of the block the i-th is; nil: i
	trans  bool            // the tensor holds the transpose, (cols,rows)
	// factors places bytes that are scale factors, rows of cols of them; nil for others
	factors *dtype.FactorLayout
}

// What is transposed at once: rows of the block that are whole cache lines of the tensor, times as many columns
// as stay in the cache and are worth a call of the conversion.
const (
	loadTileRows = 32
	loadTileCols = 256
)

// move copies the part between a block of the variable, with rows of cols elements, and the tensor's elements,
// and converts them: into the tensor if toTensor is set, else out of it.
func (p loadPart) move(
	block []byte, blockType dtype.DType, cols int, tensor []byte, tensorType dtype.DType, toTensor bool,
) error {
	if tensorType == dtype.Uint8 {
		p.moveBytes(block, cols, tensor, toTensor)
		return nil
	}
	size, unit := tensorType.Bytes(1), blockType.Bytes(1)
	tensor = tensor[p.at*size : (p.at+p.rows*cols)*size]
	// convert does it for consecutive elements of the block.
	convert := func(at int, elems []byte) error {
		b := block[at*unit : (at+len(elems)/size)*unit]
		if toTensor {
			return dtype.Convert(tensorType, elems, blockType, b)
		}
		return dtype.Convert(blockType, b, tensorType, elems)
	}
	if p.trans {
		return p.moveTransposed(cols, tensor, toTensor, convert)
	}
	for i := 0; i < p.rows; {
		row, n := p.run(i)
		if err := convert(row*cols, tensor[i*cols*size:(i+n)*cols*size]); err != nil {
			return err
		}
		i += n
	}
	return nil
}

// moveBytes copies codes or factors, cols bytes a row, as they are.
func (p loadPart) moveBytes(block []byte, cols int, tensor []byte, toTensor bool) {
	if p.factors != nil && !toTensor {
		clear(block) // the layout has bytes that no factor takes
	}
	for i := range p.rows {
		row, line := i, tensor[p.at+i*cols:p.at+(i+1)*cols]
		if p.row != nil {
			row = p.row(i)
		}
		switch {
		case p.factors == nil && toTensor:
			copy(line, block[row*cols:(row+1)*cols])
		case p.factors == nil:
			copy(block[row*cols:(row+1)*cols], line)
		}
		for c := range line {
			switch {
			case p.factors == nil:
			case toTensor:
				line[c] = block[p.factors.Index(0, row, c)]
			default:
				block[p.factors.Index(0, row, c)] = line[c]
			}
		}
	}
}

// run returns the block's row of row i and how many from there on follow one another in both.
func (p loadPart) run(i int) (row, n int) {
	if p.row == nil {
		return i, p.rows - i
	}
	row, n = p.row(i), 1
	for i+n < p.rows && p.row(i+n) == row+n {
		n++
	}
	return row, n
}

// moveTransposed goes through tiles in the tensor's format.
func (p loadPart) moveTransposed(cols int, tensor []byte, toTensor bool, convert func(int, []byte) error) error {
	size := len(tensor) / (p.rows * cols)
	tile := make([]byte, loadTileRows*loadTileCols*size)
	swap := func(r, c, rows, n int) {
		for j := range n {
			line := tensor[((c+j)*p.rows+r)*size : ((c+j)*p.rows+r+rows)*size]
			if toTensor {
				gather(line, tile[j*size:], loadTileCols*size, size)
			} else {
				scatter(tile[j*size:], line, loadTileCols*size, size)
			}
		}
	}
	for r := 0; r < p.rows; r += loadTileRows {
		for c := 0; c < cols; c += loadTileCols {
			rows, n := min(loadTileRows, p.rows-r), min(loadTileCols, cols-c)
			if !toTensor {
				swap(r, c, rows, n)
			}
			for i := range rows {
				row := r + i
				if p.row != nil {
					row = p.row(row)
				}
				if err := convert(row*cols+c, tile[i*loadTileCols*size:(i*loadTileCols+n)*size]); err != nil {
					return err
				}
			}
			if toTensor {
				swap(r, c, rows, n)
			}
		}
	}
	return nil
}

// scatter copies the elements of line, of size 2 or 4 bytes, to every step-th byte of dst.
func scatter(dst, line []byte, step, size int) {
	if size == 4 {
		for at := 0; len(line) >= 4; at, line = at+step, line[4:] {
			binary.LittleEndian.PutUint32(dst[at:], binary.LittleEndian.Uint32(line))
		}
		return
	}
	for at := 0; len(line) >= 2; at, line = at+step, line[2:] {
		binary.LittleEndian.PutUint16(dst[at:], binary.LittleEndian.Uint16(line))
	}
}

// gather is the inverse of scatter.
func gather(line, src []byte, step, size int) {
	if size == 4 {
		for at := 0; len(line) >= 4; at, line = at+step, line[4:] {
			binary.LittleEndian.PutUint32(line, binary.LittleEndian.Uint32(src[at:]))
		}
		return
	}
	for at := 0; len(line) >= 2; at, line = at+step, line[2:] {
		binary.LittleEndian.PutUint16(line, binary.LittleEndian.Uint16(src[at:]))
	}
}
