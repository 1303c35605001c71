"""The web application: pages of runs, and the live actions of the contract under /api/RUN/ACTION."""

from __future__ import annotations

import asyncio
import html
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headcount.app.console.words import prune_command
from headcount.app.serve.fields import InvalidRequest
from headcount.app.serve.guard import Guard
from headcount.app.serve.served_run import ServedRun
from headcount.core.errors import HeadcountError, MissingExtra
from headcount.runs.report import contract
from headcount.runs.report.collect import collect_report
from headcount.runs.report.page import FrontEnd, content_security_policy, load_front_end, render_page
from headcount.runs.report.plain import replace_control_characters
from headcount.runs.report.write import HARD_MB, MEGABYTE, fit_report

try:
    from anyio.to_thread import run_sync
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtra("headcount serve needs starlette and uvicorn: pip install 'headcount[serve]'") from error

Action = Literal["attend", "ablate", "prune"]
ACTIONS: Mapping[Action, str] = {"attend": "attend", "ablate": "ablate", "prune": "prune_run"}
"""The functions of actions.py that a page can call, by the name of the action."""


class Site:
    """The pages and live actions of the served runs; one action runs at a time."""

    def __init__(self, runs: Sequence[ServedRun], token: str, bundle: FrontEnd | None = None) -> None:
        self.runs, self.token = {str(number): run for number, run in enumerate(runs)}, token
        self.bundle = bundle or load_front_end()
        self._busy = threading.Lock()

    async def home(self, _request: Request) -> Response:
        """Answers with the report of one run or two, or with a list if there are more."""
        names = list(self.runs)
        return (
            await self._report_page(names)
            if len(names) <= 2
            else HTMLResponse(self._run_list_html(), headers={"Content-Security-Policy": "default-src 'none'"})
        )

    async def show_run(self, request: Request) -> Response:
        """Answers with the report of one run."""
        name = request.path_params["run"]
        return await self._report_page([name]) if name in self.runs else _error_response(404, f"there is no run {name}")

    async def show_comparison(self, request: Request) -> Response:
        """Answers with the comparison of two runs."""
        names = [request.path_params[which] for which in ("a", "b")]
        return await self._report_page(names) if all(name in self.runs for name in names) else _error_response(404, "there is no such run")

    async def send_report_data(self, request: Request) -> Response:
        """Answers with the data of one run as JSON."""
        name = request.path_params["run"]
        if name not in self.runs:
            return _error_response(404, f"there is no run {name}")
        return JSONResponse(await run_in_threadpool(self._collect_report, [name]))

    async def run_live_action(self, request: Request) -> Response:
        """Runs a live action; answers 409 while another one runs."""
        name, action = request.path_params["run"], request.path_params["action"]
        if name not in self.runs or action not in ACTIONS:
            return _error_response(404, f"there is no action {action} of run {name}")
        try:
            content = json.loads(await request.body())
        except (ValueError, RecursionError):
            return _error_response(400, "the request is no valid JSON")
        if not self._busy.acquire(blocking=False):
            return _error_response(409, "another action is running; wait until it is finished")
        try:
            return JSONResponse(await run_sync(self._run_and_release, self.runs[name], action, content, abandon_on_cancel=True))
        except InvalidRequest as error:
            return _error_response(400, str(error))
        except HeadcountError as error:
            return _error_response(422, str(error))
        except asyncio.CancelledError:
            return _error_response(503, "headcount serve was stopped; start it again to repeat the action")

    def _run_and_release(self, run: ServedRun, action: Action, content: Any) -> dict[str, Any]:
        try:
            from headcount.app.serve import actions  # imports torch, which the pages of a run do without

            return getattr(actions, ACTIONS[action])(run, content)
        finally:
            self._busy.release()

    @property
    def is_busy(self) -> bool:
        """Whether an action is running."""
        return self._busy.locked()

    def _collect_report(self, run_names: Sequence[str]) -> contract.Report:
        runs = [self.runs[name] for name in run_names]
        report = fit_report(collect_report(*(run.run for run in runs), prune_command=prune_command), round(HARD_MB * MEGABYTE), self.bundle)
        live: list[contract.LiveRunStatus] = [
            {"id": name, "can_run": not run.why_not, "why_not": run.why_not} for name, run in zip(run_names, runs, strict=True)
        ]
        return {**report, "live": {"token": self.token, "runs": live}}

    async def _report_page(self, run_names: Sequence[str]) -> Response:
        try:
            report = await run_in_threadpool(self._collect_report, run_names)
        except HeadcountError as error:
            return _error_response(500, str(error))
        return HTMLResponse(
            render_page(report, self.bundle),
            headers={"Content-Security-Policy": f"{content_security_policy(self.bundle, live=True)}; frame-ancestors 'none'"},
        )

    def _run_list_html(self) -> str:
        rows = [
            f'<li><a href="/run/{name}?token={html.escape(self.token)}">{html.escape(replace_control_characters(run.run.folder.name))}</a></li>'
            for name, run in self.runs.items()
        ]
        head = '<head><meta charset="utf-8"><title>headcount</title></head>'
        return f'<!doctype html><html lang="en">{head}<body><ul>{"".join(rows)}</ul></body></html>'


def _error_response(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)


def application(site: Site, *, further_host_names: Sequence[str] = ()) -> Any:
    """Returns the ASGI application of a site behind its guard; `further_host_names` are further host names that it answers under."""

    async def answer_not_found(_request: Request, _reason: Exception) -> Response:
        return _error_response(404, "there is nothing here")

    async def answer_server_error(_request: Request, error: Exception) -> Response:
        return _error_response(500, f"unexpected {type(error).__name__}; see the terminal of headcount serve for details, and report it")

    routes = [
        Route("/", site.home, methods=["GET"]),
        Route("/run/{run}", site.show_run, methods=["GET"]),
        Route("/compare/{a}/{b}", site.show_comparison, methods=["GET"]),
        Route("/api/{run}/report", site.send_report_data, methods=["GET"]),
        Route("/api/{run}/{action}", site.run_live_action, methods=["POST"]),
    ]
    return Guard(
        Starlette(routes=routes, exception_handlers={404: answer_not_found, 500: answer_server_error}), site.token, further_host_names
    )
