"""What is told to a client whose request comes to nothing, as OpenAI's clients read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exlchat.llm.constraint import ConstraintError
from exlchat.llm.controls import CONTROLS
from exlchat.llm.info import ModelError
from exlchat.llm.request import RequestError
from exlchat.untrusted.text import one_line, visible

_LONGEST = 1000
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A refused or failed request.

    Args:
        status: of HTTP. What the client has to mend is 400 to 499; clients send what gets 500 and above again.
        message: one line: what it is about, what is wrong, how to mend it.
        param: the field of the body that is wrong, where it is one.
        code: a word that programs tell it by.
        retry_after: seconds after which it may be tried again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        self.message = one_line(visible(message), _LONGEST)
        super().__init__(self.message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> dict[str, Any]:
        """What is sent: alone, or as the last event of a stream whose head was sent already."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        found = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        # The same request would fail the same way, and `openai` would send it twice more.
        return found if self.status != 500 else {**found, "x-should-retry": "false"}


def bad(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    """A request that cannot be: 400."""
    return ApiError(400, message, param=param, code=code)


def unknown_fields(names: Sequence[str]) -> ApiError:
    """At least one; where a server is strict."""
    said = f"{names[0]} means nothing here" if len(names) == 1 else f"{', '.join(names)} mean nothing here"
    return bad(names[0], f"{said}; leave it out, or start the server without --strict-fields")


def context_exceeded(field: str, prompt_tokens: int, context: int) -> ApiError:
    """`field` is what is too long."""
    return bad(
        field,
        f"This model's maximum context length is {context} tokens. However, the prompt has {prompt_tokens} tokens "
        "and an answer needs room for at least one; shorten it, or load the model with a larger --context",
        code="context_length_exceeded",
    )


def told_error(error: Exception) -> ApiError:
    """What a client is told of an error that the engine ended with."""
    match error:
        case ApiError():
            return error
        case RequestError() | ConstraintError():
            # Of a control of sampling the line begins with its name.
            first = str(error).partition(" ")[0].strip(":")
            return bad(first if first in CONTROLS else None, str(error))
        case ModelError():
            return ApiError(500, str(error), code="model_failed")
        case _:
            return ApiError(500, f"the engine failed ({type(error).__name__}: {error}); nothing of it is the request's")
