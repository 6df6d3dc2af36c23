"""The explorer's server: the page, its files, and its queries. Imports no torch and computes nothing itself."""

import asyncio
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from posenc.explorer import security, start
from posenc.explorer.loading import Loading, Worker
from posenc.explorer.security import Guard, Origin, RefusedError
from posenc.explorer.targets import Target
from posenc.languages import tr

MAX_ANSWERS = 64  # latest answers that are cached
MAX_QUERY = 1 << 15  # characters of a query, which may list the frequencies of a model
MAX_NAME = 100  # characters of a file's name
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]+")  # in a file name
Answer = tuple[bytes, str]  # content, media type


class Server:
    """The state that the routes share: the token, the loading thread, and the cached answers.

    Args:
        origin: The address and port.
        target: The target that the explorer was started with.
    """

    def __init__(self, origin: Origin, target: Target) -> None:
        self.origin, self.target = origin, target
        self.token = secrets.token_urlsafe(32)
        self.loading = Loading(self._load)
        self._worker = Worker()
        self._early, self._late = start.early(target), dict[str, Any]()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()  # torch's random state belongs to the process
        self._waiting: set[asyncio.Future[None]] = set()
        self._ended = False

    def app(self) -> ASGIApp:
        """Return the ASGI app."""
        routes = [
            Route("/", self._page),
            Route("/static/{name:path}", self._file),
            Route("/plotly.js", self._plotly),
            Route("/api/start", self._start),
            Route("/api/shell", self._shell),
            Route("/api/language/zh", self._language),
            Route("/api/{form:str}/{view:str}", self._view),
            Route("/inspect", self._inspect, methods=["POST"]),
        ]
        handlers: Any = {RefusedError: _refuse, 404: _missing, 405: _missing, Exception: _failed}
        return Guard(Starlette(routes=routes, exception_handlers=handlers), origin=self.origin, posts=["/inspect"])

    def _load(self) -> None:
        self._late = start.late(self.target)

    def end(self) -> None:
        """Cancel all waiting requests before the program exits; safe to call from a signal handler."""
        self._ended = True
        for left in tuple(self._waiting):
            left.get_loop().call_soon_threadsafe(left.cancel)

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Run work in the worker thread; wait until it is done or the program ends."""
        left = asyncio.get_running_loop().create_future()
        self._waiting.add(left)
        done = asyncio.wrap_future(self._worker.submit(work))
        try:
            if not self._ended:
                await asyncio.wait({done, left}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise RefusedError(503, tr("The explorer has stopped. Start it again."))
            return done.result()
        finally:
            self._waiting.discard(left)
            done.cancel()  # the result is not needed any more

    async def _page(self, request: Request) -> Response:
        return _static("index.html")

    async def _file(self, request: Request) -> Response:
        return _static(request.path_params["name"])

    async def _plotly(self, request: Request) -> Response:
        path = plotly_file()
        return Response(await asyncio.to_thread(path.read_bytes), media_type=TYPES[".js"])

    async def _start(self, request: Request) -> Response:
        state = {"ready": self.loading.ready, "failure": self.loading.failure, "token": self.token}
        return JSONResponse({**self._early, **(self._late if self.loading.ready else {}), **state})

    async def _shell(self, request: Request) -> Response:
        from posenc.explorer import export

        return Response(await asyncio.to_thread(export.shell), media_type=TYPES[".html"])

    async def _language(self, request: Request) -> Response:
        return JSONResponse(translations())

    async def _view(self, request: Request) -> Response:
        form, view = request.path_params["form"], request.path_params["view"]
        if form not in {"view", "csv"}:
            raise RefusedError(404, "Nothing is here.")
        pairs = request.query_params.multi_items()
        query = dict(pairs)
        if len(query) != len(pairs):
            raise RefusedError(400, "A query may name each option only once.")
        if len(request.url.query) > MAX_QUERY:
            raise RefusedError(400, f"A query has at most {MAX_QUERY:,} characters.")
        self._check_loaded()
        data, media_type = await self._ask(request, form, view, query)
        name = "-".join(["posenc", view, *_UNSAFE.split(query.get("a", ""))])[:MAX_NAME].rstrip("-")
        extra = {"content-disposition": f'attachment; filename="{name}.csv"'} if form == "csv" else {}
        return Response(data, media_type=media_type, headers=extra)

    async def _ask(self, request: Request, form: str, view: str, query: Mapping[str, str]) -> Answer:
        """Return an answer, computed or cached; skip the computation if the client has disconnected."""
        key = f"{form}/{view}?{sorted(query.items())}"
        async with self._one_at_a_time:
            if key not in self._answers:
                if await request.is_disconnected():  # the slider has moved on
                    raise RefusedError(400, "The client has disconnected.")
                self._answers[key] = await self._do(lambda: compute(form, view, query))
                while len(self._answers) > MAX_ANSWERS:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(key)
            return self._answers[key]

    async def _inspect(self, request: Request) -> Response:
        security.check_post(request.headers, self.token, self.origin)
        body = await security.read_body(request.headers, request.receive)
        self._check_loaded()
        name = "".join(c for c in request.query_params.get("name", "") if c.isprintable())[:MAX_NAME]
        async with self._one_at_a_time:
            return JSONResponse(await self._do(lambda: read_upload(body, name or "a file")))

    def _check_loaded(self) -> None:
        if not self.loading.ready:
            raise RefusedError(
                503, self.loading.failure or tr("The encodings are still loading. Try again in a moment.")
            )


def compute(form: str, view: str, query: Mapping[str, str]) -> Answer:
    """Compute a view's answer in the given form, "view" or "csv".

    Raises:
        RefusedError: There is no such view, or the query is invalid.
    """
    from posenc.explorer import frames, tables, views

    if view not in views.VIEWS:
        raise RefusedError(404, f"There is no view {view[:40]!r}. Known: {', '.join(views.VIEWS)}.")
    if form == "csv":
        sizes = {
            c.name: str(int(c.max or c.default)) for c in views.VIEWS[view].controls if c.name in {"rows", "columns"}
        }
        table = _refusing(
            lambda: tables.write(views.answer(view, {**query, **sizes}))
        )  # all rows and columns, not only as many as the canvas has pixels
        return table.encode(), "text/csv; charset=utf-8"
    answered = _refusing(lambda: views.answer(view, query))
    if isinstance(answered, frames.Frame):
        return frames.encode(answered), frames.MEDIA_TYPE
    return frames.to_json(answered), "application/json"


def read_upload(body: bytes, name: str) -> dict[str, Any]:
    """Read a posted model file and keep it.

    Raises:
        RefusedError: The body is neither a configuration nor a checkpoint's header, or is invalid.
    """
    from posenc.explorer import frames, uploads

    found: dict[str, Any] = frames.plain(_refusing(lambda: uploads.read_body(body, name)))
    return found


def _refusing(work: Callable[[], Any]) -> Any:
    """Run work; turn the library's errors into refusals with the same message."""
    try:
        return work()
    except (ValueError, TypeError, NotImplementedError, OverflowError, ImportError) as error:
        raise RefusedError(400, str(error) or type(error).__name__) from error
    except MemoryError as error:
        raise RefusedError(400, tr("This does not fit into the memory. Choose a shorter length.")) from error


def translations() -> dict[str, str]:
    """Return the page's texts in Chinese by their English templates."""
    found: dict[str, str] = json.loads(files("posenc").joinpath("zh/explorer.json").read_text("utf-8"))
    return found


def static_files() -> dict[str, Traversable]:
    """Return the page's files by name. Requests are looked up here only, never on the disk."""
    root = files("posenc.explorer").joinpath("static")
    found: dict[str, Traversable] = {}
    left = [("", root)]
    while left:
        before, folder = left.pop()
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_dir():
                left.append((f"{before}{entry.name}/", entry))
            elif Path(entry.name).suffix in TYPES:
                found[before + entry.name] = entry
    return found


def plotly_file() -> Path:
    """Return the path of the script in plotly's wheel, without importing plotly."""
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            return path
    raise RefusedError(503, "The charts need plotly; pip install 'posenc[web]'.")


def _static(name: str) -> Response:
    found = static_files().get(name)
    if found is None:
        raise RefusedError(404, "Nothing is here.")
    return Response(found.read_bytes(), media_type=TYPES[Path(name).suffix])


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": error.sentence}, error.status)


async def _missing(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "Nothing is here."}, getattr(error, "status_code", 404))


async def _failed(request: Request, error: Exception) -> Response:
    message = tr(
        "The explorer has failed because of a bug; the terminal where it runs shows the traceback ({error:s}).",
        error=type(error).__name__,
    )
    return JSONResponse({"error": message}, 500)
