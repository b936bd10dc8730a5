"""``python -m privaudit.cli``: as ``python -m privaudit``."""

from privaudit.cli.main import run

if __name__ == "__main__":
    run()
