"""Answers the browser: the page, and JSON of `views`, to who has the token, on this machine alone.

Every request is a GET and changes nothing. The token is in the address that the command prints, and in a cookie from
then on: other users of the machine reach the port too. A name in the Host header that is not this machine's is refused,
so no page of elsewhere reads through the browser (DNS rebinding). Texts of the policy go to the browser as JSON and
into the page as text, never as HTML.
"""

import dataclasses
import http
import http.cookies
import http.server
import json
import pathlib
import secrets
import urllib.parse
from collections.abc import Callable, Mapping

from rljob_api import errors
from rljob_workers.cli import trajectories
from rljob_workers.cli.ui import views

HOST = "127.0.0.1"
_OWN_NAMES = frozenset({"127.0.0.1", "localhost"})
_COOKIE = "rljob_ui"
_FILES: Mapping[str, tuple[str, str]] = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FOLDER = pathlib.Path(__file__).parent
Query = Mapping[str, list[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent back."""

    status: http.HTTPStatus
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Site:
    """Every address of the site. Pure but for what `runs` reads."""

    def __init__(self, runs: views.Source, *, token: str) -> None:
        """token: what a request has to know."""
        self._runs, self._token = runs, token

    def answer(self, target: str, *, host: str, cookie: str) -> Answer:
        """Return the answer to a GET of `target` (path and query) with these headers."""
        if not _is_own(host):
            return _problem(http.HTTPStatus.FORBIDDEN, f"the Host header is {host[:100]!r}, not this machine")
        try:
            url = urllib.parse.urlsplit(target)
            query = urllib.parse.parse_qs(url.query, keep_blank_values=True, max_num_fields=50)
        except ValueError as error:
            return _problem(http.HTTPStatus.BAD_REQUEST, f"the address is none: {error}")
        token = query.get("token", [""])[-1]
        if url.path == "/" and token and self._is_token(token):
            value = f"{_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            return Answer(status=http.HTTPStatus.SEE_OTHER, body=b"", headers={"Location": "/", "Set-Cookie": value})
        if not self._is_token(_cookie(cookie)):
            return _problem(
                http.HTTPStatus.FORBIDDEN, "open the address that `rljob ui` printed, with its token, in this browser"
            )
        if url.path in _FILES:
            name, content_type = _FILES[url.path]
            return Answer(status=http.HTTPStatus.OK, body=(_FOLDER / name).read_bytes(), content_type=content_type)
        return self._json(url.path, query)

    def _json(self, path: str, query: Query) -> Answer:
        parts = [urllib.parse.unquote(part) for part in path.split("/")]
        match parts:
            case ["", "api", "runs"]:
                return _answered(self._runs.listed)
            case ["", "api", "runs", name]:
                return _answered(lambda: self._runs.run(name))
            case ["", "api", "runs", name, "trajectories"]:
                return _answered(lambda: self._runs.trajectories(name, trajectory_query(query)))
        return _problem(http.HTTPStatus.NOT_FOUND, "there is no such address")

    def _is_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())


def trajectory_query(query: Query) -> views.TrajectoryQuery:
    """Return what a query asks for. Raises ManifestError that names parameter, value and what would be right."""

    def one(key: str) -> str:
        return query.get(key, [""])[-1].strip()

    reward, reasons = one("reward"), tuple(filter(None, one("reason").split(",")))
    return views.TrajectoryQuery(
        row_filter=trajectories.RowFilter(
            reward=trajectories.reward_test(reward) if reward else None,
            reasons=trajectories.checked_reasons(reasons),
            prompt_ids=tuple(filter(None, one("prompt").split(","))),
            truncated=one("truncated") == "true",
        ),
        versions=[_whole(number, key="version", most=2**53) for number in filter(None, one("version").split(","))],
        evaluation=one("kind") == "evaluation",
        offset=_whole(one("offset") or "0", key="offset", most=views.MOST_PASSED),
    )


def _whole(text: str, *, key: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= most):
        raise errors.ManifestError(f"{key} is {text[:100]!r}, but must be a whole number from 0 to {most}")
    return int(text)


def _answered(view: Callable[[], views.JsonObject]) -> Answer:
    try:
        body = view()
    except errors.ManifestError as error:
        return _problem(http.HTTPStatus.BAD_REQUEST, "; ".join(error.problems))
    except errors.DataError as error:
        return _problem(http.HTTPStatus.NOT_FOUND, str(error))
    except errors.RLJobError as error:
        return _problem(http.HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
    return Answer(status=http.HTTPStatus.OK, body=json.dumps(views.plain(body), allow_nan=False).encode())


def _is_own(host: str) -> bool:
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname in _OWN_NAMES
    except ValueError:
        # What is no host names no machine. Versions of Python differ in what they refuse.
        return False


def _problem(status: http.HTTPStatus, text: str) -> Answer:
    return Answer(status=status, body=json.dumps({"problem": text}).encode())


def _cookie(header: str) -> str:
    try:
        morsel = http.cookies.SimpleCookie(header).get(_COOKIE)
    except http.cookies.CookieError:
        return ""
    return "" if morsel is None else morsel.value


class Server(http.server.ThreadingHTTPServer):
    """The site on a port of this machine; 0 is any free one."""

    daemon_threads = True

    def __init__(self, site: Site, *, port: int) -> None:
        """Raises UnavailableError if the port is taken."""
        self.site = site
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise errors.UnavailableError(f"cannot listen on {HOST}:{port}: {error.strerror}") from error


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    # Seconds after which a connection that says nothing is closed.
    timeout = 30.0
    server_version, sys_version = "rljob", ""

    def do_GET(self) -> None:
        """Answer from the site."""
        answer = self.server.site.answer(
            self.path, host=self.headers.get("Host", ""), cookie=self.headers.get("Cookie", "")
        )
        self.send_response(answer.status)
        for name, value in {**_HEADERS, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are of no interest to who started the command, and their lines would hold the token."""


def serve(runs: views.Source, *, port: int) -> None:
    """Serve the runs until interrupted. Raises UnavailableError if the port is taken."""
    token = secrets.token_urlsafe(24)
    with Server(Site(runs, token=token), port=port) as server:
        print(f"http://{HOST}:{server.server_port}/?token={token}", flush=True)
        server.serve_forever()
