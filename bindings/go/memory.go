package logitport

// #include <logitport.h>
// #include <stdlib.h>
import "C"

import "unsafe"

// arena is C memory for the arguments of one call. C structures must not hold Go pointers, so slices and texts are
// copied to it. It is reused by the next call: usual steps allocate nothing.
type arena struct {
	memory  unsafe.Pointer
	size    uintptr
	used    uintptr
	earlier []unsafe.Pointer // smaller blocks that are in use until reset
}

const (
	firstBlock = 4096
	alignment  = 8
)

// reset makes all memory available again.
func (a *arena) reset() {
	for _, block := range a.earlier {
		C.free(block)
	}
	a.earlier, a.used = a.earlier[:0], 0
}

// free returns all memory to the system.
func (a *arena) free() {
	a.reset()
	C.free(a.memory)
	*a = arena{}
}

// take returns memory of this size, which is not zeroed.
func (a *arena) take(size uintptr) unsafe.Pointer {
	size = (size + alignment - 1) &^ (alignment - 1)
	if a.used+size > a.size {
		if a.memory != nil {
			a.earlier = append(a.earlier, a.memory)
		}
		a.size = 2*a.size + size + firstBlock
		a.memory = C.malloc(C.size_t(a.size)) // cgo panics if there is no memory
		a.used = 0
	}
	taken := unsafe.Add(a.memory, a.used)
	a.used += size
	return taken
}

// array returns zeroed C memory for count values of a type without Go pointers.
func array[T any](a *arena, count int) []T {
	if count == 0 {
		return nil
	}
	var zero T
	taken := unsafe.Slice((*T)(a.take(uintptr(count)*unsafe.Sizeof(zero))), count)
	for index := range taken {
		taken[index] = zero
	}
	return taken
}

// first returns the address of a slice's first element, or nil.
func first[T any](values []T) *T {
	if len(values) == 0 {
		return nil
	}
	return &values[0]
}

// ids copies token ids.
func (a *arena) ids(ids []int32) (*C.int32_t, C.size_t) {
	if len(ids) == 0 {
		return nil, 0
	}
	taken := unsafe.Slice((*int32)(a.take(uintptr(len(ids))*4)), len(ids))
	copy(taken, ids)
	return (*C.int32_t)(unsafe.Pointer(&taken[0])), C.size_t(len(ids))
}

// text copies a text.
func (a *arena) text(text string) C.logitport_text {
	if text == "" {
		return C.logitport_text{}
	}
	taken := unsafe.Slice((*byte)(a.take(uintptr(len(text)))), len(text))
	copy(taken, text)
	return C.logitport_text{data: (*C.char)(unsafe.Pointer(&taken[0])), size: C.size_t(len(text))}
}

// goText copies a text of the library.
func goText(text C.logitport_text) string {
	return string(unsafe.Slice((*byte)(unsafe.Pointer(text.data)), int(text.size)))
}
