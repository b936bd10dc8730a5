"""``python -m privaudit.cli``: as ``python -m privaudit``."""

from privaudit.cli.start import run

if __name__ == "__main__":
    run()
