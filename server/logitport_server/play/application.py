"""The page, and what it calls."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from logitport.errors import LogitportError
from logitport.testing.view.notebook import css
from logitport_server.play.export import export_test
from logitport_server.play.forms import builtin_forms, form_of
from logitport_server.play.fragments import run_to_json
from logitport_server.play.guard import Guard
from logitport_server.play.runs import MAX_STEPS, RunSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from logitport_server.play.files import Files
    from logitport_server.play.models import PlayModel
    from logitport_server.play.runs import Runs

_MAX_BODY_BYTES = 1 << 20
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_STARTING_CHAIN = ("no_repeat_ngram", "temperature")
_JSON = "application/json"


class Play:
    """The application.

    Args:
        models: by name.
        files: processors of the user.
        runs: runs chains of both.
        prompt: the prompt to begin with; None for that of the model.
        seed: the seed to begin with.
    """

    def __init__(
        self, models: Mapping[str, PlayModel], files: Files, runs: Runs, prompt: str | None = None, seed: int = 0
    ) -> None:
        self._models = models
        self._files = files
        self._runs = runs
        self._prompt = prompt
        self._seed = seed
        self._builtins = [form.to_json() for form in builtin_forms()]

    def guarded(self, token: str, port: int) -> ASGIApp:
        """The application behind its guard."""
        routes = [Route(f"/{name}", _static(name, content)) for name, content in _page().items()]
        routes += [
            Route("/", _static("index.html", _page()["index.html"])),
            Route("/api/state", self._answer(self.state)),
            Route("/api/files", self._answer(self.files)),
            Route("/api/run", self._answer(self.run), methods=["POST"]),
            Route("/api/export", self._answer(self.export), methods=["POST"]),
        ]
        return Guard(Starlette(routes=routes), token, port)

    def state(self, _: bytes) -> dict[str, Any]:
        """What the page can choose from."""
        self._files.refresh()
        own = [
            form_of(f"{file.name}:{name}", file.name, processor).to_json()
            for file in self._files
            for name, processor in file.processors.items()
        ]
        first = list({form["group"]: form for form in reversed(own)}.values())
        starting = first or [form for form in self._builtins if form["name"] in _STARTING_CHAIN]
        default = next(iter(self._models.values()))
        return {
            "models": [{"name": one.name, "prompt": one.prompt} for one in self._models.values()],
            "model": default.name,
            "prompt": default.prompt if self._prompt is None else self._prompt,
            "seed": self._seed,
            "max_steps": MAX_STEPS,
            "processors": [*own, *self._builtins],
            "chain": [{"processor": form["name"], "params": form["params"]} for form in starting],
            **self.files(_),
        }

    def files(self, _: bytes) -> dict[str, Any]:
        """When the files were saved, and their errors."""
        self._files.refresh()
        return {
            "version": self._files.version,
            "files": [
                {"name": file.name, "seconds_since_saved": file.seconds_since_saved, "error": file.error}
                for file in self._files
            ],
        }

    def run(self, body: bytes) -> dict[str, Any]:
        """Run the specified chain. Raises LogitportError or msgspec.ValidationError."""
        spec = msgspec.json.decode(body, type=RunSpec)
        return run_to_json(self._runs.run(spec), spec.lane)

    def export(self, body: bytes) -> dict[str, Any]:
        """Write the test. Raises as `run`."""
        return {"code": export_test(msgspec.json.decode(body, type=RunSpec), self._runs, self._files)}

    def _answer(self, function: Callable[[bytes], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            body = await _body(request)
            if isinstance(body, Response):
                return body
            try:
                result = await run_in_threadpool(function, body)
            except msgspec.DecodeError as error:  # with ValidationError
                return _error(f"the request cannot be read: {error}")
            except LogitportError as error:
                return _error(str(error))
            return Response(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY), media_type=_JSON)

        return endpoint


async def _body(request: Request) -> bytes | Response:
    """The body of a request; a response if it cannot be accepted."""
    if request.method == "POST" and request.headers.get("content-type") != _JSON:
        return _error("send the content type application/json", 415)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            return _error(f"the request has more than {_MAX_BODY_BYTES} bytes; send less", 413)
    return bytes(body)


def _error(message: str, status: int = 400) -> Response:
    return Response(orjson.dumps({"error": message}), status, media_type=_JSON)


def _page() -> dict[str, bytes]:
    """All files of the page by name: no path of a request reaches the file system."""
    folder = files("logitport_server.play").joinpath("page")
    names = [one.name for one in folder.iterdir() if one.name.rpartition(".")[2] in _TYPES]
    return {**{name: folder.joinpath(name).read_bytes() for name in sorted(names)}, "view.css": css().encode()}


def _static(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    media_type = _TYPES[name.rpartition(".")[2]]

    async def endpoint(_: Request) -> Response:
        return PlainTextResponse(content, media_type=media_type)

    return endpoint
