"""The page's own files: templates, which escape all that is put in, and the style."""

from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from privaudit.report import wording


def asset(name: str) -> str:
    """Return a file that is installed beside this module."""
    return (files("privaudit.report") / name).read_text(encoding="utf-8")


def template(name: str) -> Template:
    """Return a template; a name it lacks is an error, not an empty string."""
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["epsilon"] = wording.epsilon
    environment.filters["heading"] = wording.heading
    environment.filters["rounds"] = wording.rounds
    environment.filters["small"] = wording.small
    return environment.get_template(name)
