"""The live view: from an iteration's end to pixels, and what a frame of many ranks takes.

Both in headless Chromium. The first with JupyterLab, two real ranks and a cell
that blocks the kernel; the second with the view alone, fed in the page.
"""

import base64
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.bench.bounds import NotMeasured, at_least, at_most, sized

ROOT = Path(__file__).parents[2]
LIMIT_MS, LIMIT_HIGH_MS = 80, 120
"""Of the median and of the 95th percentile."""
LIMIT_MAIN_PERCENT = 10
LEAST_FRAMES_PER_S = 10

TRAINS = """%%distributed
import os, time, torch
from torch import nn
model = nn.Linear(64, 64)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters())
inputs = torch.randn(8, 64)
for iteration in range(1_000_000):
    if iteration % 50 == 0 and hvd.broadcast_object(os.path.exists({stop!r}), root_rank=0):
        break  # on all ranks in the same iteration
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    time.sleep({pause})
    optimizer.step()
"""
ITERATION_S = 0.02
SECONDS = sized(20, 2)
FRAMES_S = sized(10, 1)
SIZES = sized(((2, 10_000), (64, 10_000), (8, 72_000)), ((2, 1_000),))
"""Ranks, and iterations that are shown."""

# Ends of iterations and arrivals of their records, on the wall clock, in ms.
TIMES = """
import json, time
import numpy as np
wall = time.time() * 1e3 - time.perf_counter_ns() / 1e6
rows = cluster.timings.rows()
ends = np.zeros(int(rows["iteration"].max()) + 1)
np.maximum.at(ends, rows["iteration"], (rows["start_ns"] + rows["iteration_ns"]) / 1e6 + wall)
print(json.dumps({"ends": ends.tolist(), "came": came, "sent": sent}))
"""
LISTEN = """
import time
came = []
_ = cluster.timings.subscribe(lambda: came.append((time.time() * 1e3, len(cluster.timings))))
from workbench.widgets.live import LiveView
sent, send = [], LiveView._send
def note(view, message):
    send(view, message)
    if message.buffers:
        sent.append((time.time() * 1e3, message.content["summary"]["iteration"]))
LiveView._send = note
"""
# When the animation frame in which an iteration was drawn has been painted.
WATCH = """
node => {
  window.seen = [];
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = ({ data }) => {
    window.seen.push([performance.timeOrigin + performance.now(), data]);
  };
  const look = () => {
    const latest = node.textContent.replaceAll(',', '').match(/\\d+/)?.[0];
    port2.postMessage(Number(latest));
  };
  const all = { childList: true, characterData: true, subtree: true };
  new MutationObserver(look).observe(node, all);
}
"""


def measure():
    """Report both."""
    from playwright.sync_api import expect, sync_playwright

    from tests.browser.conftest import QUIET, _executable

    with sync_playwright() as playwright:
        found = _executable(playwright.chromium)
        if found is None:
            raise NotMeasured("there is no Chromium here")
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        expect.set_options(timeout=60_000)
        for ranks, iterations in SIZES:
            yield _frames(browser, ranks, iterations)
        yield from _latency(browser)
        browser.close()


def _latency(browser):
    from tests.browser.material import write_notebook
    from tests.browser.pages import Lab
    from tests.browser.server import LabServer

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "notebooks"
        root.mkdir()
        server = LabServer(Path(folder), root)
        try:
            stop = Path(folder) / "stop"
            train = TRAINS.format(stop=str(stop), pause=ITERATION_S * 0.8)
            start = "%load_ext workbench\ncluster = %cluster start -n 2"
            path = write_notebook(server, "bench.ipynb", start, LISTEN, "%timings", train, TIMES)
            page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
            notebook = Lab(page, server, "bench").open_notebook(path)
            notebook.run_all()
            notebook.expect_running(3)
            notebook.view.show()
            notebook.view.wait_for_iterations(100)
            notebook.view.node.locator(".jp-gw-Live-iteration").evaluate(WATCH)
            main = MainThread(page)
            time.sleep(SECONDS)
            main = main.share()
            stop.touch()
            seen = page.evaluate("() => window.seen")
            notebook.expect_ended(4, 120)
            text = "".join(one.get("text", "") for one in notebook.outputs()[4])
            yield from _report(json.loads(text), seen, main)
            server.shut_down_kernels_of(path)
        finally:
            server.stop()


def _report(times, seen, main):
    """Each iteration: when it ended, when both ranks' records had come, when it was seen."""
    ends, came, sent = (np.array(times[name]) for name in ("ends", "came", "sent"))
    drawn_at, drawn = np.array(seen).T
    wanted = np.arange(int(drawn[0]) + 1, int(drawn[-1]))
    pixels = drawn_at[np.searchsorted(drawn, wanted)]
    arrived = came[np.searchsorted(came[:, 1], 2 * (wanted + 1)), 0]
    left = sent[np.searchsorted(np.maximum.accumulate(sent[:, 1]), wanted), 0]
    apart = (seen[-1][0] - seen[0][0]) / 1e3
    print(
        f"2 ranks, {len(wanted) / apart:.0f} iterations/s, {len(seen) / apart:.1f} updates/s "
        "while the cell blocks the kernel, ms:"
    )
    parts = {
        "iteration's end to the kernel": arrived - ends[wanted],
        "in the kernel": left - arrived,
        "kernel to pixels": pixels - left,
        "iteration's end to pixels": pixels - ends[wanted],
    }
    for name, values in parts.items():
        median, high = np.percentile(values, [50, 95])
        print(f"  {name:30} median {median:4.0f}, 95th percentile {high:4.0f}")
    yield at_most(f"{name}, median", median, LIMIT_MS, "ms")
    yield at_most(f"{name}, 95th percentile", high, LIMIT_HIGH_MS, "ms")
    yield at_most("the page's main thread", 100 * main, LIMIT_MAIN_PERCENT, "%")


# The view alone. Chunks of 8,192 rows, as a kernel sends them, are shifted in the page.
_SET_UP = """
async ({ code, css, snapshot, chunk, columns }) => {
  document.head.append(Object.assign(document.createElement('style'), { textContent: css }));
  const url = URL.createObjectURL(new Blob([code], { type: 'text/javascript' }));
  const widget = (await import(url)).default();
  const draws = window.draws = [];
  const ask = window.requestAnimationFrame.bind(window);
  // What a frame takes: its callbacks, and what they leave to be done at once after them.
  window.requestAnimationFrame = callback => ask(now => {
    const began = performance.now();
    callback(now);
    queueMicrotask(() => draws.push(performance.now() - began));
  });
  const callbacks = {};
  const model = {
    get: () => snapshot, send: () => undefined, off: () => undefined,
    on: (event, callback) => { callbacks[event] = callback; }
  };
  document.body.style.width = '1200px';
  widget.render({ model, el: document.body });
  const whole = Float32Array.from(
    new Float32Array(Uint8Array.from(atob(chunk), c => c.charCodeAt(0)).buffer)
  );
  const rows = whole.length / columns.length;
  const { ranks } = snapshot;
  const each = rows / ranks.length;
  let [seq, next] = [snapshot.seq, 0];
  window.give = (count, type) => {
    const data = new Float32Array(columns.length * count * ranks.length);
    const length = count * ranks.length;
    columns.forEach((_, c) => {
      data.set(whole.subarray(c * rows, c * rows + length), c * length);
    });
    for (let i = 0; i < length; i++) {
      data[i] = next + Math.floor(i / ranks.length);
    }
    next += count;
    seq += 1;
    const content = { ...snapshot, type, seq, columns, rows: length };
    if (type !== 'window') { delete content.details; }
    callbacks['msg:custom'](content, [new DataView(data.buffer)]);
  };
  window.each = each;
}
"""
_FILL = """
iterations => {
  for (let held = 0; held < iterations; held += window.each) { window.give(window.each, 'window'); }
}
"""
_SPAN = """
() => {
  const [, span] = document.querySelectorAll('.jp-gw-Live-select');
  span.value = 'all';
  span.dispatchEvent(new Event('change'));
}
"""
_RUN = """
seconds => new Promise(done => {
  window.draws.length = 0;
  let turns = 10 * seconds;
  const timer = setInterval(() => {
    window.give(2, turns % 10 ? 'delta' : 'window');
    if (--turns === 0) {
      clearInterval(timer);
      setTimeout(() => done([...window.draws]), 200);  // the last update is drawn, too
    }
  }, 100);
})
"""
_MARK = """
() => new Promise(done => {
  const charts = document.querySelector('.jp-gw-Live-charts');
  for (const key of ['+', '-', '-']) {
    charts.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  }
  window.draws.length = 0;
  setTimeout(() => done(Math.max(...window.draws)), 500);
})
"""


def _frames(browser, ranks, iterations):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto("about:blank")
    page.evaluate(_SET_UP, _material(ranks))
    page.evaluate(_FILL, iterations)
    page.evaluate(_SPAN)
    page.wait_for_timeout(1500)
    main = MainThread(page)
    draws = page.evaluate(_RUN, FRAMES_S)
    main = main.share()
    draws = [ms for ms in draws if ms > 0.05]
    mark = page.evaluate(_MARK)
    high = statistics.quantiles(draws, n=20)[-1]
    print(
        f"{ranks} ranks x {iterations:,} iterations, all shown: a frame takes "
        f"{statistics.median(draws):.1f} ms (95th percentile {high:.1f}), "
        f"main thread {main:.1%}; "
        f"marking all of them {mark:.0f} ms"
    )
    page.close()
    figure = f"{ranks} ranks x {iterations:,} iterations, of 10 updates/s drawn"
    return at_least(figure, len(draws) / FRAMES_S, LEAST_FRAMES_PER_S, "per s")


def _material(ranks):
    from synthetic_source import SyntheticSource

    from workbench.widgets.messages import MAX_ROWS, make_snapshot
    from workbench.widgets.source import COLUMNS, TimingsReading

    source = SyntheticSource(ranks)
    source.step(MAX_ROWS // ranks)
    chunk = source.window(MAX_ROWS).data.astype("<f4").tobytes()
    source.begin()
    static = ROOT / "workbench/widgets/static"
    return {
        "code": (static / "live.js").read_text(),
        "css": (static / "live.css").read_text(),
        "snapshot": {
            **make_snapshot(TimingsReading.take(source, 0), "bench", 1),
            "state": "running",
        },
        "chunk": base64.b64encode(chunk).decode(),
        "columns": list(COLUMNS),
    }


class MainThread:
    """How much of its time a page's main thread works, from now on: its processor time."""

    def __init__(self, page):
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._began, self._before = time.monotonic(), self._busy()

    def share(self):
        return (self._busy() - self._before) / (time.monotonic() - self._began)

    def _busy(self):
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")
