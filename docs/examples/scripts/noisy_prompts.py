"""What prompts of the initialisation and noise alone are worth."""

import torch

from privaudit.core.seeds import Seeds
from privaudit.federation.query import ask
from privaudit.runs.config import make_config
from privaudit.runs.population import populate

config = make_config("dp-fedpt", {}, seed=0)
task, trainer = populate(config).task, config.build_trainer()
((name, start),) = trainer.start(task, Seeds(0)).items()
stream = torch.Generator().manual_seed(1)
for spread in (0.0, 0.027 * 20**0.5, 0.27 * 20**0.5):
    noise = torch.randn(20, *start.shape, generator=stream)
    answers = ask(trainer, task, {name: start + spread * noise}, task.public)
    right = (answers.argmax(-1) == task.public.labels).float().mean(1)
    print(spread, right.mean(), right.min(), right.max())
