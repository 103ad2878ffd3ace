"""Takes a picture of a report with headless Chromium: how docs/images/report.png is made.

    python docs/images/screenshot.py demo-out/report.html docs/images/report.png

WIDTH, HEIGHT (pixels) and `dark` may follow.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

TIMEOUT_S = 100
SCHEMES = {"dark": 0, "light": 1}


def chromium(page: Path, width: int, height: int, scheme: str, *more: str) -> str:
    """Opens the page with Chromium; returns stdout and stderr, which carries its console."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--enable-logging=stderr",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            *more,
            page.resolve().as_uri(),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    return done.stdout + done.stderr


def screenshot(page: Path, png: Path, width: int, height: int, scheme: str) -> list[str]:
    """Writes the picture; returns what the page wrote to the console."""
    console = chromium(page, width, height, scheme, f"--screenshot={png.resolve()}")
    return [line for line in console.splitlines() if "CONSOLE" in line]


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word not in SCHEMES]
    size = [int(word) for word in words[2:4]] or [1280, 1590]
    light_or_dark = "dark" if "dark" in sys.argv else "light"
    for line in screenshot(Path(words[0]), Path(words[1]), size[0], size[1], light_or_dark):
        sys.exit(f"the page complained: {line}")
