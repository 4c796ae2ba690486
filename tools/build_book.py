"""Build the book as `jupyter-book build` does; Ctrl+C ends it with a sentence.

    python tools/build_book.py . -W -n --keep-going

Jupyter Book turns KeyboardInterrupt into an error of the book and shows a traceback; SystemExit passes through it.
"""

import signal
import sys

import whole


def stop(*_) -> None:
    """Say that the build was stopped, and end it; what holds a lock or a process gives it up on the way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl+C would end in the middle of this
    print("\nbook: stopped; the site is not complete, and the same command completes it", file=sys.stderr)
    sys.exit(whole.INTERRUPTED)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    from jupyter_book.cli.main import main

    main(["build", *sys.argv[1:]], prog_name="jupyter-book")
