"""The part of shipped code's output that a worker keeps."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from logitport.system.installation import OUR_PACKAGES
from logitport_server.worker import messages, packing
from logitport_server.worker.output import Output, capture

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def capturing() -> Iterator[Output]:
    streams, hook, handlers = (sys.stdout, sys.stderr), sys.breakpointhook, logging.root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in ("", *OUR_PACKAGES)}
    # `capture` closes the handlers that it replaces, and these belong to pytest.
    logging.root.handlers[:] = []
    captured = capture()
    captured.begin()
    try:
        yield captured
    finally:
        gc.callbacks.remove(captured.on_collection)
        (sys.stdout, sys.stderr), sys.breakpointhook, logging.root.handlers[:] = streams, hook, handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def test_output_of_a_call_begins_and_ends_with_it() -> None:
    with capturing() as captured:
        captured.end()
        print("before")
        captured.begin()
        print("first")
        assert captured.end() == "first\n"
        print("between")
        captured.begin()
        assert captured.end() == ""


def test_all_ways_to_write_are_kept() -> None:
    with capturing() as captured:
        sys.stdout.buffer.write(b"bytes\n")
        print("error", file=sys.stderr)
        logging.getLogger("a.b").warning("record")
        logging.getLogger("a.b").debug("too detailed")
        logging.getLogger("logitport_server.x").warning("not of the processor")
        logging.getLogger("logitport_session.x").warning("not of the processor")

    assert captured.end() == "bytes\nerror\nWARNING a.b: record\n"


@pytest.mark.parametrize("size", [1, 2007, 2008, 2009, 4015, 4016])
def test_what_fits_is_kept_whole(size: int) -> None:
    output, text = Output(), "".join(chr(97 + i % 26) for i in range(size))
    output.begin()
    for begin in range(0, size, 7):
        output.write(text[begin : begin + 7].encode())

    assert output.end() == text


@pytest.mark.parametrize("chunk", [1, 1000, 1_000_000])
def test_of_more_the_begin_and_the_end_are_kept(chunk: int) -> None:
    output, left = Output(), 100_000
    output.begin()
    output.write(b"begin")
    for begin in range(0, left, chunk):
        output.write(b"." * min(chunk, left - begin))
    output.write(b"end")

    kept = output.end()

    assert len(kept) <= messages.MAX_OUTPUT_LENGTH
    assert kept.startswith("begin.")
    assert kept.endswith(".end")
    assert f"[{left + 8 - 2 * 2008} bytes left out]" in kept


def test_end_of_the_output_since_a_moment() -> None:
    output = Output()
    output.begin()
    output.write(b"earlier")
    moment = output.own_bytes
    assert output.since(moment) == ""
    output.write(b"later")
    assert output.since(moment) == "later"
    output.write(b"x" * 100_000 + b"last")
    assert output.since(moment).endswith("xlast")
    assert len(output.since(moment)) == messages.MAX_ERROR_OUTPUT_LENGTH


def test_output_of_others_is_kept_but_not_since_a_moment() -> None:
    output = Output()
    output.begin()
    with output.of_others():
        output.write(b"theirs, ")
        with output.of_others():
            output.write(b"again, ")
        output.write(b"still, ")
    output.write(b"ours, ")
    moment = output.own_bytes
    output.write(b"now")

    assert output.since(0) == "ours, now"
    assert output.since(moment) == "now"
    assert output.end() == "theirs, again, still, ours, now"


class Leaves:
    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        print("left")


def test_output_of_a_garbage_collection_is_that_of_others() -> None:
    with capturing() as captured:
        Leaves()
        print("begin")
        gc.collect()
        print("end")

        assert captured.since(0) == "begin\nend\n"
        assert captured.end() == "begin\nleft\nend\n"


def test_a_garbage_collection_of_another_thread_hides_nothing() -> None:
    collecting, printed = threading.Event(), threading.Event()

    class Waits(Leaves):
        def __del__(self) -> None:
            collecting.set()
            printed.wait(60)

    with capturing() as captured:
        gc.disable()
        try:
            Waits()
            thread = threading.Thread(target=gc.collect)
            thread.start()
            assert collecting.wait(60)
            print("ours")
        finally:
            printed.set()
            gc.enable()
        thread.join()

        assert captured.since(0) == "ours\n"


def test_text_that_cannot_be_encoded_is_kept() -> None:
    with capturing() as captured:
        print("\ud800")
        sys.stdout.buffer.write(b"\xff")

    assert captured.end() == "\\ud800\n\ufffd"


def test_other_threads_are_left_out() -> None:
    output = Output()
    output.begin()
    thread = threading.Thread(target=output.write, args=(b"theirs",))
    thread.start()
    thread.join()
    output.write(b"ours")

    assert output.end() == "ours"


def test_stream_has_a_descriptor() -> None:
    with capturing():
        assert sys.stdout.fileno() == 1
        assert not sys.stdout.isatty()


def test_breakpoint_is_refused() -> None:
    with capturing(), pytest.raises(RuntimeError, match=r"logitport_testing\.simulate"):
        breakpoint()


def test_reply_with_the_longest_texts_is_sent_whole() -> None:
    error = messages.Error(13, "\x00" * 2000, "\x00" * 5000, "\x00" * messages.MAX_ERROR_OUTPUT_LENGTH)
    reply = messages.ErrorReply(error=error, output="\x00" * messages.MAX_OUTPUT_LENGTH)
    packing.pack_reply(1, reply, (), packing.reply_limits(messages.Validate(processor=1), ()))

    assert len(reply.output) == messages.MAX_OUTPUT_LENGTH
    assert len(reply.error.output) == messages.MAX_ERROR_OUTPUT_LENGTH


def test_output_is_cut_to_fit_beside_the_errors_of_many_rows() -> None:
    output, error = "\x00" * messages.MAX_OUTPUT_LENGTH, ("\x00" * 2000, "\x00" * 5000, "\x00" * 2000)
    reply = messages.EditReply(failed={row: messages.Error(13, *error) for row in range(100)}, output=output)
    limit = packing.reply_limits(messages.Edit(processor=1, vocab_size=8, counts=[1] * 100), ())

    assert len(packing.pack_reply(1, reply, (), limit)) <= limit.message_bytes + 64
