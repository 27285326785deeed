"""`python -m headway` is the command `headway`."""

import os
import signal


def main() -> None:
    """Import the command line and run it. Ctrl-C during the imports prints one line, as it does later."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _exit_interrupted)
    from headway.cli import main as run

    run()


def _exit_interrupted(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
