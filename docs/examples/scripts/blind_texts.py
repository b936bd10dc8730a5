"""What single classifiers, and the family, tell of early against late captions of Flickr8k."""

import time
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

from privaudit.statistics.roc import auroc
from privaudit_labs.shift.blind_baseline import blind_baseline, variance_doubled

text = Path("flickr8k_captions_all.txt").read_text(encoding="utf-8")
lines = [line.split(",", 1) for line in text.splitlines()[1:]]
first = {}
for name, caption in lines:
    first.setdefault(name, caption)
names = sorted(first, key=lambda n: int(n.split("_")[0]))
early, late = names[:1500], names[-1500:]
texts = [first[n] for n in early + late]
truth = np.arange(3000) < 1500
plain = {
    "logistic regression on counts": make_pipeline(
        CountVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000)
    ),
    "logistic regression on tf-idf": make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000)
    ),
    "naive Bayes on counts": make_pipeline(
        CountVectorizer(ngram_range=(1, 2)), MultinomialNB()
    ),
    "logistic regression on letters": make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5)),
        LogisticRegression(max_iter=1000),
    ),
}
for name, one in plain.items():
    began = time.process_time()
    s = cross_val_predict(one, texts, truth, cv=5, method="predict_proba")[:, 1]
    print(
        name,
        variance_doubled(auroc(s[truth], s[~truth])),
        round(time.process_time() - began, 1),
        flush=True,
    )
began = time.process_time()
nothing = np.zeros((1500, 1))
found = blind_baseline(
    nothing, nothing, member_texts=texts[:1500], nonmember_texts=texts[1500:], seed=0
)
print("the family", found, round(time.process_time() - began, 1))
