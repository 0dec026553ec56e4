"""The web application of a page: its files, and what it calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from logitport.errors import InvalidArgument, LogitportError
from logitport_play.web.page_guard import PageGuard
from logitport_testing.view.notebook import css

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

# Raises LogitportError or msgspec.DecodeError, which the page shows.
Function = Callable[[bytes], dict[str, Any]]

_MAX_BODY_BYTES = 1 << 20
_READ = ("state", "files", "examples")
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_JSON = "application/json"

_Spec = TypeVar("_Spec")


def application(functions: Mapping[str, Function], body: str, token: str, port: int) -> ASGIApp:
    """An application behind its guard. It shows the head of all pages with the file `body`.

    The page calls the functions at `api/NAME`. Each gets the body of the request; b"" for GET.
    """
    page = _page()
    routes = [Route(f"/{name}", _static(name, content)) for name, content in page.items()]
    routes.append(Route("/", _static(body, page["head.html"] + page[body])))
    routes += [
        Route(f"/api/{name}", _answer(function), methods=["GET" if name in _READ else "POST"])
        for name, function in functions.items()
    ]
    return PageGuard(Starlette(routes=routes), token, port)


def read(body: bytes, kind: type[_Spec]) -> _Spec:
    """Read the body of a request.

    Raises:
        msgspec.DecodeError: it is no JSON, or not of this kind.
        InvalidArgument: it is nested too deeply.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError as error:
        raise InvalidArgument("the request cannot be read: its JSON is nested too deeply") from error


def _answer(function: Function) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            result = await run_in_threadpool(function, body)
            return Response(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY), media_type=_JSON)
        except msgspec.DecodeError as error:  # with ValidationError
            return _error(f"the request cannot be read: {error}")
        except LogitportError as error:
            return _error(str(error))
        except Exception as error:  # for example, names and defaults of the user's file that JSON cannot have
            logger.exception("a call of the page has failed")
            return _error(f"{type(error).__name__}: {error}", 500)

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
    text = message.encode(errors="backslashreplace").decode()  # may have a lone surrogate
    return Response(orjson.dumps({"error": text}), status, media_type=_JSON)


def _page() -> dict[str, bytes]:
    """All files of the page by name: no path of a request reaches the file system."""
    folder = files("logitport_play.web").joinpath("page")
    names = [one.name for one in folder.iterdir() if one.name.rpartition(".")[2] in _TYPES]
    return {**{name: folder.joinpath(name).read_bytes() for name in sorted(names)}, "view.css": css().encode()}


def _static(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    media_type = _TYPES[name.rpartition(".")[2]]

    async def endpoint(_: Request) -> Response:
        return PlainTextResponse(content, media_type=media_type)

    return endpoint
