"""Split a bank of Flickr8k into pictures with dogs and without."""

import json
from pathlib import Path

import numpy as np

bank = Path("clip_flickr8k_1000")
seen = json.loads(Path("flickr-stories-128/projector.json").read_text())[
    "public_indices"
]
vectors = np.load(bank / "clip_embeddings.npy")
captions = json.loads((bank / "captions.json").read_text())
unseen = sorted(set(range(len(captions))) - set(seen))
dogs = [i for i in unseen if {"dog", "dogs"} & set(captions[i].lower().split())]
for name, chosen in {
    "others": [i for i in unseen if i not in dogs],
    "dogs": dogs,
}.items():
    (folder := Path("shifted") / name).mkdir(parents=True)
    np.save(folder / "clip_embeddings.npy", vectors[chosen])
    (folder / "captions.json").write_text(json.dumps([captions[i] for i in chosen]))
