"""Take the screenshots in docs/assets from live programs.

    python scripts/take_screenshots.py [--out DIRECTORY] [NAME...]

| name | shows |
|---|---|
| console | the console before and during an engine hang, and `headgate explain` for a request that the hang affected |
| simulation | the HTML report from `headgate simulate` |
| cost | `headgate cost` with the example ledger (bench/ledger_example.py) |

Without a name the script takes all of them, which takes about three minutes. It requires Chromium
(scripts/install_observability) and, for `cost`, PostgreSQL (scripts/install_postgres). All programs listen on loopback
and are stopped at the end.

Ports, request ids and measured times differ between runs. Review each picture before you commit it.
"""

import argparse
import html
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT)]

from PIL import Image  # noqa: E402 (the path comes first)
from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

from headgate.cli.demo_incidents import HEALTHY_S, INCIDENTS  # noqa: E402
from headgate.wire.keys import digest, format_digest  # noqa: E402
from testing.gateway import a_config, gateway_process  # noqa: E402
from testing.postgres import postgres  # noqa: E402
from testing.processes import ChildProcess, ProcessFailedError  # noqa: E402

OUT = PROJECT / "docs" / "assets"
WIDTH_PX = 1200
BYTES_MAX = 150_000
MARGIN_PX = 16
"""Space below the last panel of a picture."""
COLORS_MAX = 256
"""Size of the palette."""
BROWSER_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")

INCIDENT = "engine-hang"
HEALTHY_PICTURE_S = HEALTHY_S - 8.0
"""Time from the start of the demo to the screenshot of the healthy state, long enough to fill the charts."""
INCIDENT_PICTURE_DELAY_S = 6.0
"""Time from the verdict to the screenshot, long enough to fill its evidence and the charts."""
DEMO_START_S_MAX = 90.0
VERDICT_S_MAX = 120.0
RETRIED_S_MAX = 90.0

SCENARIO = "scenarios/retry-storm.yaml"
LEDGER_UNTIL = "2026-11-16T02:00"
COST = ("cost", "--by", "model", "--since", "2026-11-09", "--until", "2026-11-16")

TERMINAL_COLUMNS = 98
TERMINAL_WIDTH = 900
"""Width of the terminal in CSS pixels."""
TERMINAL = """\
<!doctype html>
<meta charset="utf-8">
<style>
  body {{ margin: 0; padding: 16px; background: #fff; }}
  figure {{ margin: 0; border: 1px solid #d0d7de; border-radius: 8px; overflow: hidden; }}
  figcaption {{ padding: 8px 14px; background: #f0f2f5; border-bottom: 1px solid #d0d7de; display: flex; gap: 7px; }}
  i {{ width: 11px; height: 11px; border-radius: 50%; background: #c4cad1; }}
  pre {{ margin: 0; padding: 12px 16px 14px; font: 14px/1.4 "DejaVu Sans Mono", monospace; color: #1f2328; }}
  b {{ color: #0550ae; }}
  s {{ color: #8b949e; text-decoration: none; }}
</style>
<figure><figcaption><i></i><i></i><i></i></figcaption><pre><s>$</s> <b>{command}</b>
{output}</pre></figure>
"""


class Camera:
    """Browser in light mode that writes screenshots of pages to one directory."""

    def __init__(self, browser: Browser, out: Path) -> None:
        self._browser = browser
        self._out = out

    @contextmanager
    def page(self, url: str, *, width: int = WIDTH_PX) -> Iterator[Page]:
        """Open a page that is `width` CSS pixels wide. Its screenshots are WIDTH_PX wide."""
        viewport = {"width": width, "height": 900}
        context = self._browser.new_context(
            viewport=viewport,  # pyright: ignore[reportArgumentType]
            color_scheme="light",
            device_scale_factor=WIDTH_PX / width,
        )
        page = context.new_page()
        page.goto(url)
        yield page
        context.close()

    def take(self, page: Page, name: str, *, last: str) -> None:
        """Write a screenshot of the page from its top to the end of the element `last`."""
        box = page.locator(last).bounding_box()
        assert box is not None, f"{last} is not visible"
        width = page.evaluate("document.documentElement.clientWidth")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width} px"
        clip = {"x": 0, "y": 0, "width": width, "height": box["y"] + box["height"] + MARGIN_PX}
        file = self._out / f"{name}.png"
        page.screenshot(path=file, full_page=True, clip=clip)  # pyright: ignore[reportArgumentType]
        compress(file)
        print(f"{file.name}: {file.stat().st_size // 1024} KiB")

    def take_terminal(self, name: str, command: Sequence[str], output: str) -> None:
        """Write a screenshot of a command and its output as they appear in a terminal."""
        with tempfile.TemporaryDirectory() as folder, self.page("about:blank", width=TERMINAL_WIDTH) as page:
            file = Path(folder) / "terminal.html"
            text = {"command": shlex.join(command), "output": output.rstrip("\n")}
            file.write_text(TERMINAL.format(**{key: html.escape(each) for key, each in text.items()}))
            page.goto(file.as_uri())
            self.take(page, name, last="figure")


def compress(file: Path) -> None:
    """Reduce a picture to a palette without dithering."""
    with Image.open(file) as picture:
        # The default method can merge two colours of a chart if one of them is rare.
        reduced = picture.convert("RGB").quantize(COLORS_MAX, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)
    size = file.stat().st_size
    assert size <= BYTES_MAX, f"{file.name} is {size} bytes; the limit is {BYTES_MAX}"


def headgate(*arguments: str, columns: int | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a command, which must succeed, and return its output. With `columns`, run it in a terminal of that width."""
    command = [sys.executable, "-m", "headgate.cli.main", *arguments]
    variables = {**os.environ, **(environment or {})}
    if columns is not None:
        command = ["script", "--quiet", "--return", "--command", shlex.join(command), "/dev/null"]
        variables["COLUMNS"] = str(columns)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise ProcessFailedError(f"headgate {shlex.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


# The console and explain


def take_console(camera: Camera) -> None:
    with running_demo() as demo, camera.page(f"{demo.admin_url}/console/") as page:
        started_at = time.monotonic()
        wait_for_cause(page, "healthy")
        time.sleep(max(0.0, started_at + HEALTHY_PICTURE_S - time.monotonic()))
        camera.take(page, "console-healthy", last="section:has(#endpoints)")
        wait_for_cause(page, INCIDENTS[INCIDENT].expected_cause)
        with patient_clients(demo):
            time.sleep(INCIDENT_PICTURE_DELAY_S)
            camera.take(page, "console-incident", last="section:has(#endpoints)")
            request_id = wait_for_retried_request(demo.admin_url)
        output = headgate("explain", request_id, "--url", demo.admin_url, columns=TERMINAL_COLUMNS)
        camera.take_terminal("explain", ("headgate", "explain", request_id), output)


@dataclass(frozen=True, slots=True)
class RunningDemo:
    url: str
    key: str
    """A tenant's API key."""
    admin_url: str


@contextmanager
def running_demo() -> Iterator[RunningDemo]:
    command = [sys.executable, "-m", "headgate.cli.main", "demo", "--incident", INCIDENT, "--plain"]
    introduction = re.compile(r"gateway +(\S+)/v1 +key (\S+)\n.*\n +console +(\S+)/console/\n")
    with ChildProcess("demo", command) as demo:
        give_up_at = time.monotonic() + DEMO_START_S_MAX
        while not (found := introduction.search(demo.log())):
            if demo.exit_status is not None or time.monotonic() > give_up_at:
                raise ProcessFailedError(f"the demo did not start:\n{demo.log()}")
            time.sleep(0.2)
        try:
            yield RunningDemo(found[1], found[2], found[3])
        finally:
            # The demo stops its own processes, which are not in its process group.
            demo.terminate()
            demo.wait_until_ended()


def patient_clients(demo: RunningDemo) -> ChildProcess:
    """Send a few requests without a timeout. The gateway retries those that go to the hung engine; the demo's clients
    can disconnect before that.
    """
    sizes = ("--prompt-tokens", "600", "--output-tokens", "120", "--ignore-eos")
    load = ("--url", demo.url, "--model", "demo", "--rate", "3", "--duration", "4", "--api-key", "env:DEMO_KEY")
    command = [sys.executable, "-m", "headgate.cli.main", "loadtest", *load, *sizes]
    return ChildProcess("clients", command, {"DEMO_KEY": demo.key})


def wait_for_cause(page: Page, cause: str) -> None:
    expect(page.locator(f"#verdict[data-cause={cause}]")).to_be_visible(timeout=VERDICT_S_MAX * 1000)


def wait_for_retried_request(admin_url: str) -> str:
    """Wait for the first completed interactive request with a second attempt."""
    options = ("--since", "2m", "--class", "interactive", "--outcome", "completed", "--slower-than", "8s")
    give_up_at = time.monotonic() + RETRIED_S_MAX
    while time.monotonic() < give_up_at:
        found = json.loads(headgate("explain", *options, "--json", "--url", admin_url))
        for each in found["requests"]:
            request: dict[str, Any] = json.loads(headgate("explain", each["request_id"], "--json", "--url", admin_url))
            if sum(step["kind"] == "dispatched" for step in request["steps"]) > 1:
                return request["request_id"]
        time.sleep(2.0)
    raise ProcessFailedError(f"no request was retried within {RETRIED_S_MAX:g} s")


# The simulation report


def take_simulation(camera: Camera) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        headgate("simulate", str(PROJECT / SCENARIO), "--seed", "7", "--quiet", "--html", str(report))
        with camera.page(report.as_uri(), width=1000) as page:
            camera.take(page, "simulation", last="svg >> nth=1")


# The cost report


def take_cost(camera: Camera) -> None:
    secret, key = secrets.token_urlsafe(32), f"hg-{secrets.token_urlsafe(32)}"
    operator = {"key": format_digest(digest(secret.encode(), key)), "permissions": ["read"]}
    with tempfile.TemporaryDirectory() as folder, postgres() as database:
        example = [sys.executable, "-m", "bench.ledger_example", database.url, "--until", LEDGER_UNTIL]
        subprocess.run(example, cwd=PROJECT, check=True)
        config = a_config(
            "http://127.0.0.1:9",
            key_secret="${KEY_SECRET}",
            database={"url": database.url},
            ledger={"spool_directory": f"{folder}/spool"},
            admin_keys={"operator": operator},
        )
        with gateway_process(config, Path(folder), environment={"KEY_SECRET": secret}):
            url = f"http://{config['admin_listen']}"
            output = headgate(*COST, "--url", url, environment={"HEADGATE_ADMIN_KEY": key})
    camera.take_terminal("cost", ("headgate", *COST), output)


TAKERS: Mapping[str, Callable[[Camera], None]] = {
    "console": take_console,
    "simulation": take_simulation,
    "cost": take_cost,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the screenshots in docs/assets.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(TAKERS)} (default: all).")
    parser.add_argument("--out", type=Path, default=OUT, help="Output directory (default docs/assets).")
    options = parser.parse_args()
    if unknown := set(options.names) - TAKERS.keys():
        parser.error(f"unknown name {', '.join(sorted(unknown))}; choose from {', '.join(TAKERS)}")
    if (chromium := shutil.which("chromium")) is None:
        parser.error("chromium is not installed; run scripts/install_observability")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(BROWSER_OPTIONS))
        for name in options.names or TAKERS:
            TAKERS[name](Camera(browser, options.out))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
