"""``privaudit serve``: the runs of a folder as pages for one browser, read-only."""
