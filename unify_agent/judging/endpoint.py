"""Where a model is served: one base URL whatever form it was given in, a key that is never shown."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr

from unify_agent.errors import UserError

OPENAI_KEY = "OPENAI_API_KEY"
_TAILS = ("/chat/completions", "/completions", "/responses", "/models")


def _is_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or "." not in host
    return address.is_private or address.is_loopback


def base_url_of(url: str) -> tuple[str, dict[str, str]]:
    """The base URL, to which `/chat/completions` is added, and the query that goes with each request.

    Accepted are a host (`localhost:8000`), with or without a scheme, a path, `/v1`, a trailing slash or the whole
    address of a call. A bare host gets `/v1`; another path is kept. Raises UserError for what is no web address, and
    for one that holds a user name, a password or any query but `api-version`.
    """
    text = url.strip()
    host = ""
    try:
        if "://" not in text:
            text = f"{'http' if _is_local(urlsplit(f'//{text}').hostname or '') else 'https'}://{text}"
        parts = urlsplit(text)
        host = parts.hostname or ""
        parts.port  # noqa: B018  raises for one that is none
        host.encode("idna")
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or not text.isprintable() or " " in text:
        shown = host if host.isprintable() else ""
        raise UserError(f"{shown or 'the endpoint'}: not a web address; expected http(s)://HOST[:PORT][/v1]")
    if parts.username is not None or parts.password is not None:
        raise UserError(f"{parts.hostname}: a web address must not hold a user name or password; put the key in a "
                        "variable of the environment")  # fmt: skip
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if extra := sorted(set(query) - {"api-version"}):
        raise UserError(f"{parts.hostname}: the address must not hold the query {', '.join(extra)}; put the key in a "
                        "variable of the environment")  # fmt: skip
    path = parts.path.rstrip("/")
    while tail := next((each for each in _TAILS if path.endswith(each)), None):
        path = path.removesuffix(tail).rstrip("/")
    host = f"[{host}]" if ":" in host else host
    where = host if parts.port is None else f"{host}:{parts.port}"
    return f"{parts.scheme}://{where}{path or '/v1'}", query


@dataclass(frozen=True)
class Endpoint:
    """A model at an OpenAI-compatible server. `timeout` in seconds is that of one attempt.

    `extra` is merged into the body of each request, for switches of a server such as vLLM's `chat_template_kwargs`;
    it is part of what an answer is cached under, `headers` are not.
    """

    base_url: str
    model: str
    key: SecretStr | None = None
    timeout: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        url: str,
        model: str,
        *,
        key_env: str | None = None,
        timeout: float = 120.0,
        extra: Mapping[str, object] | None = None,
    ) -> Endpoint:
        """An endpoint from what a user gives.

        `key_env` names the variable that holds the key; without it OPENAI_API_KEY is sent to openai.com and no key
        to any other host. Raises UserError for an address that is none, a variable that is not set or holds what
        can be no key, or no model.
        """
        base, query = base_url_of(url)
        if not model.strip():
            raise UserError(f"{base}: no model is named")
        host = urlsplit(base).hostname or ""
        openai = host == "openai.com" or host.endswith(".openai.com")
        value = os.environ.get(key_env or OPENAI_KEY, "").strip() if key_env or openai else ""
        variable = key_env or OPENAI_KEY
        if (key_env or openai) and not value:
            raise UserError(f"{variable}: this variable of the environment, which holds the key for {host}, is not set")
        if not value.isascii() or not value.isprintable():
            raise UserError(f"{variable}: this variable of the environment holds characters that no key can have")
        return cls(base, model.strip(), SecretStr(value) if value else None, timeout, {}, query, dict(extra or {}))

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine or in a private network: no proxy is asked for it."""
        return _is_local(urlsplit(self.base_url).hostname or "")

    def hide(self, text: str) -> str:
        """`text` without the key, should a server have repeated it."""
        return text if self.key is None else text.replace(self.key.get_secret_value(), "***")
