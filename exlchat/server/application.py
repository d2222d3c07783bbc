"""Which path is answered by what."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from exlchat.api.asked import ask_chat, ask_completion
from exlchat.api.errors import ApiError, told_error
from exlchat.api.texts import apply_template, decode, detokenize, encode, tokenize
from exlchat.server.answering import Answering
from exlchat.server.desk import Desk
from exlchat.server.guard import Guard, Rules
from exlchat.server.record import Record
from exlchat.server.working import Working
from exlchat.untrusted.text import one_line


def application(desk: Desk, rules: Rules, say: Callable[[Record], None]) -> ASGIApp:
    """The whole server but for its sockets.

    Args:
        desk: the model, and who waits for it.
        rules: who may ask.
        say: gets what is noted of each request, at its end.
    """
    models, health = _Models(desk), _Health(desk)
    answers = {"/chat/completions": ask_chat, "/completions": ask_completion}
    works = {
        "/tokenize": tokenize,
        "/detokenize": detokenize,
        "/v1/token/encode": encode,
        "/v1/token/decode": decode,
        "/apply-template": apply_template,
    }
    routes = [
        Route("/health", health.ready, methods=["GET"]),
        Route("/health/live", health.live, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
        Route("/v1/model", models.loaded, methods=["GET"]),
        Route("/v1/model/list", models.list, methods=["GET"]),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{name:path}", models.one, methods=["GET"]),
        *(Route(f"/v1{path}", Answering(desk, ask), methods=["POST"]) for path, ask in answers.items()),
        *(Route(path, Working(desk, work), methods=["POST"]) for path, work in works.items()),
        Route("/v1/embeddings", _no_embeddings, methods=["POST"]),
    ]
    refusals = dict.fromkeys((HTTPException, ApiError, Exception), _refused)
    known = {route.path for route in routes}

    def ended(record: Record) -> None:
        desk.metrics.ended(record.path if record.path in known else "other", record)
        say(record)

    served = Starlette(routes=routes, exception_handlers=refusals)
    # Clients send a body again to no place that they are sent to.
    served.router.redirect_slashes = False
    return Guard(served, rules, ended)


class _Models:
    """All names, or one of them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def list(self, _: Request) -> Response:
        return JSONResponse(await self._desk.in_thread(self._desk.models))

    async def loaded(self, _: Request) -> Response:
        return JSONResponse(await self._desk.in_thread(self._desk.tabby_entry))

    async def one(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(await self._desk.in_thread(lambda: self._desk.entry(name)))


class _Health:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def ready(self, _: Request) -> Response:
        """Whether an answer could be had: the process may be there while the engine hangs."""
        desk = self._desk
        if desk.stopping:
            raise ApiError(503, "this server is being stopped", code="stopping")
        if desk.hangs:
            raise ApiError(503, f"the engine has said nothing for {desk.still_for():.0f} s", code="engine_hangs")
        return JSONResponse({"status": "ok", "running": desk.running})

    async def metrics(self, _: Request) -> Response:
        text = await self._desk.in_thread(self._desk.measured)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def live(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})


async def _no_embeddings(_: Request) -> Response:
    raise ApiError(501, "this server has models that write, and none that makes embeddings", code="not_implemented")


def _refused(request: Request, error: Exception) -> Response:
    """Every refusal has the same form, also of paths that there are not."""
    allowed = {}
    if isinstance(error, HTTPException):
        allowed = dict(error.headers or {})
        why = "there is no such path here" if error.status_code == 404 else f"ask it by {allowed.get('Allow', 'GET')}"
        told = ApiError(error.status_code, f"{request.method} {one_line(request.url.path, 80)}: {why}")
    else:
        told = told_error(error)
    return JSONResponse(told.body(), told.status, {**told.headers(), **allowed})
