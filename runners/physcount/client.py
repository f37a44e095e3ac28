"""One request to an OpenAI-compatible chat server, and what came of it as a value.

The key travels in a header and nowhere else: it is in no representation, and is taken out of whatever a server or a
library says.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from tallymill.engine.manifests.base import brief
from tallymill.errors import UsageError
from tallymill.runners.physcount.hiding import Hiding
from tallymill.runners.physcount.replies import FATAL, TRANSIENT, Outcome, outcome_of, proxy_outcome

if TYPE_CHECKING:
    import aiohttp

KEY_VARIABLE = "OPENAI_API_KEY"
_PATH = "/chat/completions"
_PIECE = 1 << 18
_LONGEST_HOST = 254
# Far more than the longest answer with its reasoning; an error that is longer repeats what it was sent.
_MOST_REPLY, _MOST_ERROR = 8 << 20, 16 << 10
_USER_IN_URL = re.compile(r"(?<=//)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where chat completions are asked for. ``shown`` may be written down: it has no user, password or query."""

    shown: str
    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    hiding: Hiding = field(repr=False)
    proxies: bool = True

    def clean(self, text: str) -> str:
        """An error without anything that is secret."""
        return _USER_IN_URL.sub("", self.hiding.text(text))

    def cleaned(self, outcome: Outcome) -> Outcome:
        """The same outcome: a server may send back what it was sent, and that must not reach a file."""
        return replace(
            outcome,
            response=self.hiding.value(outcome.response),
            reasoning=self.hiding.value(outcome.reasoning),
            finish_reason=self.hiding.value(outcome.finish_reason),
            error=None if outcome.error is None else self.clean(outcome.error),
        )


def endpoint_of(url: str, key: str | None = None, *, proxies: bool = True) -> Endpoint:
    """The endpoint at a base URL such as ``http://localhost:8000/v1``; user and password in it win over the key."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket without its other one; it may stand in the password, so nothing is repeated
        raise UsageError("--endpoint: must be a URL such as http://localhost:8000/v1") from None
    host, port = parts.hostname, _port_of(parts)
    path = parts.path.rstrip("/").removesuffix(_PATH)
    netloc = f"[{host}]" if host is not None and ":" in host else host or ""
    shown = urlunsplit((parts.scheme, netloc if port is None else f"{netloc}:{port}", path, "", ""))
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"--endpoint {shown}: must be a URL such as http://localhost:8000/v1")
    if not _can_be_a_name(host):
        raise UsageError(f"--endpoint {shown}: {brief(host)} can be the name of no host")
    posted = urlunsplit(urlsplit(shown)._replace(path=path + _PATH, query=parts.query))
    headers, secrets = {"Content-Type": "application/json"}, [parts.query]
    secrets += [value for _, value in parse_qsl(parts.query)]
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {token}"
        secrets += [token, user, password]
    elif key:
        headers["Authorization"] = f"Bearer {key}"
        secrets.append(key)
    return Endpoint(shown, posted, headers, Hiding(secrets), proxies)


def _port_of(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        given = parts.netloc.rpartition("@")[2].rpartition(":")[2]
        named = f"port {given}" if given.isdecimal() else "the port"  # which may be a part of a password
        raise UsageError(f"--endpoint: {named} must be a whole number from 0 to 65535") from None


def _can_be_a_name(host: str) -> bool:
    """Whether a resolver takes it: its parts are not empty, nor longer than 63; an address in brackets is no name."""
    try:
        return ":" in host or (len(host.encode("idna")) <= _LONGEST_HOST and not any(map(str.isspace, host)))
    except UnicodeError:
        return False


def read_key(variable: str) -> str | None:
    """The key that an environment variable holds; None where it holds none."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {variable} has characters that no header may have")
    return key or None


class Client:
    """Sends request bodies to one endpoint; ``async with`` closes its connections."""

    def __init__(self, endpoint: Endpoint, *, timeout: float, connect_timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None

    async def __aenter__(self) -> Client:
        import aiohttp

        # How many requests are in flight is decided elsewhere. Servers close idle connections after 5 s or more.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
        limits = aiohttp.ClientTimeout(total=self._timeout, connect=None, sock_connect=self._connect_timeout)
        # Not trust_env, which would send what ~/.netrc has for this host, and refuse our own header beside it.
        self._session = aiohttp.ClientSession(connector=connector, timeout=limits)
        self._proxy = _proxy_for(self._endpoint.url) if self._endpoint.proxies else None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(self, body: Sequence[bytes], sent: Callable[[], None] = lambda: None) -> Outcome:
        """Post a body that comes in pieces, and say what came of it. Nothing that can happen on the way is raised.

        ``sent`` is called once the server has the whole body, and its reply is waited for.
        """
        import aiohttp

        try:
            return self._endpoint.cleaned(await self._post(body, sent))
        except aiohttp.ConnectionTimeoutError:
            return Outcome(TRANSIENT, error=f"connection: none within {self._connect_timeout:g} s", unreachable=True)
        except TimeoutError:
            return Outcome(TRANSIENT, error=f"no reply within {self._timeout:g} s", timed_out=True)
        except (aiohttp.InvalidURL, aiohttp.ClientConnectorCertificateError) as exc:
            return Outcome(FATAL, error=self._endpoint.clean(f"cannot connect: {exc}"))
        except aiohttp.ClientConnectorSSLError as exc:  # no TLS there at all, or a handshake that broke off
            return Outcome(FATAL, error=self._endpoint.clean(f"cannot connect: {exc}"), unreachable=True)
        except aiohttp.ClientHttpProxyError as exc:
            return proxy_outcome(exc.status, self._endpoint.clean(exc.message))
        except aiohttp.ClientConnectionError as exc:
            gone = isinstance(exc, aiohttp.ClientConnectorError)
            return Outcome(TRANSIENT, error=self._endpoint.clean(f"connection: {_said(exc)}"), unreachable=gone)
        except (aiohttp.ClientError, OSError, ValueError, OverflowError) as exc:
            return Outcome(TRANSIENT, error=self._endpoint.clean(f"{type(exc).__name__}: {_said(exc)}"))

    async def _post(self, body: Sequence[bytes], sent: Callable[[], None]) -> Outcome:
        assert self._session is not None
        length = str(sum(map(len, body)))
        async with self._session.post(
            self._endpoint.url,
            data=_pieces(body, sent),
            headers={**self._endpoint.headers, "Content-Length": length},
            allow_redirects=False,  # the key is for this server
            proxy=self._proxy,
        ) as reply:
            if 300 <= reply.status < 400:
                where = reply.headers.get("Location", "elsewhere")
                return Outcome(FATAL, http_status=reply.status, error=f"HTTP {reply.status}: go to {where}")
            read = bytearray()
            async for piece in reply.content.iter_any():
                read += piece
                if not reply.ok and len(read) > _MOST_ERROR:
                    del read[_MOST_ERROR:]
                    break
                if len(read) > _MOST_REPLY:
                    return Outcome(TRANSIENT, http_status=reply.status, error="malformed reply: it does not end")
            # Here too, for an error that is cut short could keep a part of a secret.
            without = self._endpoint.hiding.body(bytes(read))
            return outcome_of(reply.status, reply.headers, without, hide=self._endpoint.clean)


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL; None where it names none, or excepts this host."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc) or proxy_bypass(parts.hostname or ""):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


async def _pieces(body: Sequence[bytes], sent: Callable[[], None]) -> AsyncIterator[memoryview]:
    """The body piece by piece: megabytes of image are neither joined nor handed to the socket at once."""
    for part in body:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]
    sent()


def _said(exc: BaseException) -> str:
    """An error in words; how aiohttp would have checked a certificate says nothing, least of all with http."""
    return str(exc).replace(" ssl:default", "") or type(exc).__name__
