"""Processors of hostile users: they sleep, hang, or search their process for prompts of other users."""

from __future__ import annotations

from logitport import CustomLogitProcessor, EditProcessor

# Ids that a searching processor forces.
FOUND, NOT_FOUND = 300, 301
# Parameters hold each id of the secret plus this number, so that a search does not find its own parameters.
SHIFT = 1000


class SleepsInCheck(CustomLogitProcessor):
    """Takes long to check the parameters of each request."""

    def validate_params(self, params):
        import time

        time.sleep(params["seconds"])

    def __call__(self, logits, custom_param_list=None):
        return logits


class HangsInCall(EditProcessor):
    """Does not return from its first call."""

    def edit(self, request, edits):
        import time

        del request, edits
        time.sleep(3600)


class Searches(EditProcessor):
    """Receives no logits. Forces FOUND if the memory of its process holds the secret."""

    def edit(self, request, edits):
        edits.force(FOUND if memory_holds(request.params["shifted"]) else NOT_FOUND)


class SearchesWithLogits(CustomLogitProcessor):
    """Receives logits. Forces FOUND if the memory of its process holds the secret."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            found = memory_holds(params["shifted"])
            row[:] = float("-inf")
            row[FOUND if found else NOT_FOUND] = 0.0
        return logits


def memory_holds(shifted: list[int]) -> bool:
    """Search this process for successive ids: its heap, and all objects that the garbage collector tracks.

    Args:
        shifted: the ids, plus SHIFT.
    """
    import gc
    import mmap
    import struct
    from array import array
    from contextlib import suppress

    import numpy as np
    import torch

    ids = [token_id - SHIFT for token_id in shifted]
    # Python keeps short strings of bytes outside of the heap that is searched.
    patterns = [struct.pack(f"<{len(ids)}{kind}", *ids) for kind in "Hiqf"]
    if heap_holds(patterns):
        return True
    tracked = gc.get_objects()
    reached = gc.get_referents(*tracked)
    own = {id(own) for own in (ids, patterns, tracked, reached, *patterns)}
    kinds = (list, tuple, bytes, bytearray, memoryview, array, mmap.mmap, np.ndarray, torch.Tensor)
    for found in (*tracked, *reached):
        if not isinstance(found, kinds) or id(found) in own:
            continue
        with suppress(Exception):
            if isinstance(found, list | tuple):
                if found and type(found[0]) is int and ids[0] in found:
                    data = np.array(found, "<i8").tobytes()
                else:
                    continue
            elif isinstance(found, torch.Tensor):
                data = found.detach().numpy().tobytes()
            elif isinstance(found, mmap.mmap):
                data = found[:]
            else:
                data = bytes(found)
            if any(pattern in data for pattern in patterns):
                return True
    return False


def heap_holds(patterns: list[bytes]) -> bool:
    """Search the end of malloc's heap, with what this process has allocated since its fork.

    The compiled core has its histories there, which the garbage collector does not track.
    """
    import ctypes

    chunk_bytes, page_bytes, num_chunks = 1 << 16, 1 << 12, 256
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    address = libc.sbrk(0) & ~(page_bytes - 1)
    overlap = max(map(len, patterns))
    residency = ctypes.create_string_buffer(chunk_bytes // page_bytes)
    above = b""
    for _ in range(num_chunks):
        address -= chunk_bytes
        # It fails for addresses that are not mapped, where a read would end the process.
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(chunk_bytes), residency) != 0:
            break
        data = ctypes.string_at(address, chunk_bytes)
        if any(pattern in data + above for pattern in patterns):
            return True
        above = data[:overlap]
    return False
