"""The blind baseline on scenes against scenes-far, by what it sees."""

import numpy as np
import torch

from privaudit.runs.config import make_config
from privaudit.runs.population import populate
from privaudit_labs.shift.blind_baseline import blind_baseline
from privaudit_labs.shift.foreign_records import records_elsewhere

config = make_config("zero-shot", dataset="scenes", model="tiny-llava")
rng = np.random.default_rng(0)
some = []
for records, count in (
    (populate(config).records, 600),
    (records_elsewhere(config, "scenes-far"), 300),
):
    some.append(records.pick(torch.from_numpy(rng.permutation(len(records))[:count])))
talk = [d for records in some for d in records.dialogues]
words = [f"{d.question} {d.answers[0]}" for d in talk]
pictures = np.concatenate([records.features.numpy() for records in some])
for seen, said in ((pictures[:, :0], words), (pictures, []), (pictures, words)):
    texts = {"member_texts": said[:600], "nonmember_texts": said[600:]}
    print(blind_baseline(seen[:600], seen[600:], **texts))
