"""The page on localhost: one thread a request, one computation at a time.

Only this machine can connect (127.0.0.1), only pages of this server can ask (the Host header must name it, which stops
DNS rebinding; no CORS), and what is asked must be in the menus: no file, no Hub.
"""

from __future__ import annotations

import threading
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from roofline.errors import InputError, RooflineError, check_number
from roofline.explain import json_text
from roofline.explore.answer import answer
from roofline.explore.page import LIVE_POLICY, SCRIPTS, live_page, part, plotly_js, setup
from roofline.explore.question import Menu, Question, question_of

ADDRESS = "127.0.0.1"
DEFAULT_PORT = 8420
LONGEST_QUERY = 4000


class Server(ThreadingHTTPServer):
    """The page of one start question; `url` says where."""

    daemon_threads = True

    def __init__(self, start: Question, menus: Menu, port: int = DEFAULT_PORT):
        check_number("port", port, low=0, high=65535, integer=True)
        self.start, self.menus, self.computing = start, menus, threading.Lock()
        script = {"/plotly.js": plotly_js()} | {f"/{name}": part(name) for name in SCRIPTS}
        self.files = {path: ("text/javascript", text.encode()) for path, text in script.items()}
        self.files["/"] = ("text/html", live_page(setup(start, menus=menus)).encode())
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            hint = "give another with --port, or 0 for any free one"
            raise InputError(f"port {port}: {error.strerror}; {hint}") from None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.server_address[1]

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a Host header may say."""
        names = (ADDRESS, "localhost")
        return tuple(f"{n}:{self.port}" for n in names) + (names if self.port == 80 else ())

    def answered(self, query: str) -> dict:
        """The answer to the query of an address."""
        try:
            q = question_of(dict(parse_qsl(query, keep_blank_values=True, max_num_fields=40)), self.menus, self.start)
        except RooflineError as error:
            return {"error": str(error)}
        with self.computing:
            return answer(q, self.menus)


class Handler(BaseHTTPRequestHandler):
    """GET of the page, its scripts, and /answer?model=...&isl=..."""

    server: Server
    server_version, sys_version = "roofline", ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer, or say why not."""
        parts = urlsplit(self.path)
        if self.headers.get("Host") not in self.server.hosts:
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this server answers to localhost only\n")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this server answers to its own page only\n")
        if parts.path in self.server.files:
            return self._send(HTTPStatus.OK, *self.server.files[parts.path])
        if parts.path != "/answer":
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n")
        if len(parts.query) > LONGEST_QUERY:
            return self._send(HTTPStatus.REQUEST_URI_TOO_LONG, "text/plain", b"too long\n")
        try:
            found = self.server.answered(parts.query)
        except ValueError:  # more fields than a question has
            return self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"not a question\n")
        self._send(HTTPStatus.OK, "application/json", json_text(found, None).encode())

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", LIVE_POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(start: Question, menus: Menu, port: int = DEFAULT_PORT, browser: bool = True, told=print) -> None:
    """Serve the page until Ctrl-C.

    Args:     start: what it shows first; port: 0 for any free one; browser: open it; told: is given the address
    """
    with Server(start, menus, port) as server:
        told(server.url)
        if browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
