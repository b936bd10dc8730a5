"""The fields of a run: what each means, its range and its default, in one place.

The command line makes its options of them, so nothing here imports torch or numpy.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from privaudit.core.parameters import COHORT_SIZE, MOST

Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MOST)]
PATH: dict[str, JsonValue] = {"format": "path"}


class RunFields(BaseModel):
    """What one run trains, on what, and how the records are split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trainer: str = Field(
        "promptfl", description="A name from `privaudit list trainers`."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="The trainer's own parameters, complete."
    )
    dataset: str = Field(
        "digits",
        description="A name from `privaudit list datasets`, or hf:FOLDER or hf:NAME "
        "for one of Hugging Face. By default: digits, or "
        "scenes for trainers of generative models.",
    )
    data: str | None = Field(
        None,
        description="Path of the data set, or data://NAME below a folder of the search "
        "path $PRIVAUDIT_DATA. By default: $PRIVAUDIT_DATA/NAME, or "
        "~/.cache/privaudit/data/NAME.",
        json_schema_extra=PATH,
    )
    image_column: str | None = Field(
        None,
        description="Column with the images of a data set in tables (hf). By default: "
        "the only one of that type.",
    )
    label_column: str | None = Field(
        None,
        description="Column with the classes (hf). By default: the only one with class "
        "names, or label.",
    )
    text_column: str | None = Field(
        None,
        description="Column with texts or captions (hf); two with a comma between them "
        "are a pair. By default: text, where there are no images.",
    )
    owner_column: str | None = Field(
        None,
        description="Column that says whose a record is (hf); then --partition is "
        "domains by default: clients are spread over the owners.",
    )
    classes: str | None = Field(
        None,
        max_length=65536,
        description="Only records of these classes: names with commas between them, a "
        ".txt with one a line, domainnet-10 or office-caltech-10. By default: all.",
    )
    groups: str | None = Field(
        None,
        max_length=200,
        description="Records that share one coin, one client and one place in every "
        "count: contents (of one picture or text, such as captions of a picture), "
        "near-duplicates (pictures that look alike), or a column of a data set in "
        "tables (hf), such as a patient's number. By default: each has its own.",
    )
    model: str = Field(
        "tiny-clip",
        description="A name from `privaudit list models`. By default: tiny-clip, or "
        "tiny-llava for trainers of generative models.",
    )
    checkpoint: str | None = Field(
        None,
        description="Weights file of an open_clip:ARCH model.",
        json_schema_extra=PATH,
    )
    template: str | None = Field(
        None,
        max_length=65536,
        description="Chat template of a model that writes (vlm:, llava:, decoder:, "
        "language:): a Jinja file, or its text. By default: the model's own.",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Of the frozen model's weights and forward passes: float32, bfloat16 "
        "or float16; with train also auto: float32 or bfloat16, as this device is "
        "faster. What is learned, clipped, noised and summed is float32.",
    )
    quantise: Literal["4bit", "8bit"] | None = Field(
        None,
        description="Pack the frozen weights of a model of transformers: 4bit or 8bit, "
        "with bitsandbytes. By default: not.",
    )
    clients: Count = Field(10, description="Clients in the federation. By default: 10.")
    partition: str = Field(
        "dirichlet",
        max_length=4096,
        description="How candidates are split among clients: dirichlet, pathological, "
        "domains, natural (a client is an owner), shards or sizes; or a partitioner of "
        "flwr-datasets, as flwr:NAME:key=value,key=value.",
    )
    alpha: float = Field(
        10.0,
        gt=0,
        allow_inf_nan=False,
        description="Concentration of the Dirichlet partition, also within domains.",
    )
    shards: Count = Field(
        2,
        le=10000,
        description="Shards of each client, in the order of classes, with --partition "
        "shards.",
    )
    sizes: str = Field(
        "power:1",
        max_length=65536,
        description="With --partition sizes: each client's candidates, as 20,5,5, or "
        "power:EXPONENT.",
    )
    rounds: Count = Field(
        description="Rounds of training. By default: the trainer's own number."
    )
    participation: float = Field(
        1.0,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of clients in each round.",
    )
    context_tokens: int = Field(
        16, ge=1, le=4096, description="Learned vectors in front of a class name."
    )
    views: Count = Field(
        1,
        le=1000,
        description="Random crops and flips of each picture, of which a step in "
        "training takes one. By default: 1, the centre crop alone.",
    )
    shots: Count | None = Field(
        None, description="Candidates per class. By default: all."
    )
    without: str | None = Field(
        None,
        max_length=1_048_576,
        description="Candidates that are nobody's, by position in the data set, as "
        "3,17,20-25: all others keep their client and their coin. `privaudit retrain` "
        "writes them. No epsilon is certified then: the list may follow from the data. "
        "By default: none.",
    )
    members: Literal["coin", "all", "clients"] = Field(
        "coin",
        description="coin: a fair coin per candidate; clients: a fair coin per client, "
        "which takes part with all its candidates or not at all (scenario "
        "client-membership); all: train on every candidate, which rules out an audit.",
    )
    test_share: Share | None = Field(
        None,
        description="Share of records to measure utility. By default: the data set's "
        "test split, or 0.3.",
    )
    public_share: float | None = Field(
        None,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="Share of reference records, which no client has; 0, with --members "
        "all alone, leaves none. By default: the data set's validation split, or 0.4.",
    )
    publish: bool = Field(True, description="Release the personal models at the end.")
    seed: int | None = Field(
        0,  # what runs of earlier versions had that named none
        ge=0,
        lt=2**64,
        description="Repeats the run: partition, starts and batches, the membership "
        "coins, and with --randomness seed the noise. Anyone with the data and this seed "
        "knows every member. By default the coins come from the run's secret key, and "
        "what everybody may know from 0.",
    )
    cohort_size: Count = Field(
        COHORT_SIZE,
        description="Clients trained together; a resumed run needs the same.",
    )
    measured_rounds: Count | None = Field(
        None,
        description="Measure utility after the last so many rounds. By default: after "
        "every round, or once for generative models.",
    )
    targets: str = Field(
        "all-linear",
        description="Linear layers that get LoRA adapters: all-linear, attention, or "
        "comma-separated suffixes of module names.",
    )
    tested: Count | None = Field(
        None,
        description="Measure utility on at most so many test records. By default: all, "
        "or 240 for generative models.",
    )
    tested_clients: Count | None = Field(
        None,
        ge=2,
        description="Measure utility of so many clients' models, drawn by the seed. By "
        "default: of all, or of 100 where there are more than 300.",
    )
    canary: Literal["mislabelled", "gradient", "secret", "drawn"] | None = Field(
        None,
        description="Canaries for the scenario one-run: mislabelled, drawn "
        "(patches of colour), or gradient (crafted; for promptfl, dp-promptfl and dp-fpl); "
        "secret (texts with random digits) for models that generate text.",
    )
    canaries: Count = Field(10, description="Canaries per client. By default: 10.")
    secure_aggregation: Literal["ideal", "masked"] = Field(
        "ideal",
        description="ideal: uploads are recorded, and server-aggregate sums them; "
        "masked: pairwise masks (privaudit-labs), no update is recorded. By default: "
        "ideal.",
    )
    masking_graph: Literal["all", "active", "passive"] = Field(
        "all",
        description="Who masks with whom: all pairs of a round's participants; or each "
        "with some at random, as many as a server asks for that is active (breaks the "
        "protocol) or passive (only reads); all pairs where they are too few. By "
        "default: all.",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability that a participant drops out before its upload counts, "
        "also during secure aggregation. By default: 0.",
    )
    randomness: Literal["seed", "system"] = Field(
        "seed",
        description="Source of noise, secret sampling and masks: system, a key drawn "
        "once and kept with the run; or seed, which makes the run repeatable and not "
        "private. By default (auto): system without --seed, seed with it.",
    )


PANELS: dict[str, str] = {
    "Data": "dataset data image_column label_column text_column owner_column classes "
    "groups shots views",
    "Model": "model checkpoint template precision quantise context_tokens targets",
    "Federation": "clients partition alpha shards sizes rounds participation dropout "
    "secure_aggregation masking_graph cohort_size publish",
    "Members, canaries and chance": "members without test_share public_share canary "
    "canaries seed randomness",
    "Measured utility": "measured_rounds tested tested_clients",
}
"""The fields by subject, as ``--help`` shows them."""
