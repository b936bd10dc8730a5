"""The recorder: whoever runs a federation hands it every message as it is sent.

Messages of one round are held until the next begins; then they are written, and
bundle.json counts the round. So memory does not grow with the rounds, and what was
recorded before a kill can be audited. It never raises into a federation: what it leaves
out, it says in a warning.
"""

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor

from privaudit.core.errors import ConfigError, PrivauditError, StorageError, shown
from privaudit.core.formatting import first_of
from privaudit.core.limits import check_limit
from privaudit.core.parameters import MOST, as_int, readable
from privaudit.core.seeds import Randomness
from privaudit.core.storage import SAFETENSORS_TYPES, make_private_folder, write_json
from privaudit.core.tensors import Tensors
from privaudit.federation.transcript import (
    PUBLIC,
    SERVER,
    UPLOAD_KINDS,
    ChainEnd,
    Kind,
    Message,
    RoundTensors,
    TranscriptFolder,
)
from privaudit.privacy.certificate import add_to_groups
from privaudit.privacy.events import Claim, MechanismEvent
from privaudit.recording.bundle import (
    BUNDLE,
    INCOMPLETE,
    Aggregation,
    Bundle,
    DeclaredClaim,
    NotedEngine,
)
from privaudit.recording.importing import finish_recording
from privaudit.recording.opacus import EngineNote, events_of
from privaudit.runs.ledger import Ledger, check_client_name
from privaudit.runs.own_files import HEADER
from privaudit.runs.run import Run
from privaudit.runs.run_folder import check_place, clear_run, remove_unfinished

_log = logging.getLogger("privaudit.recording")


class Omissions:
    """What is not recorded of whom, said once for each client and reason.

    Attributes:
        counts: How many messages of each client were left out.
        has_stopped: Whether nothing more is recorded: the recorder itself failed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counts = Counter[str]()
        self.has_stopped = False
        self._said = set[tuple[str, str]]()

    def leave_out(self, client: str, round: int, what: str, error: object) -> None:
        """Leave out what a client sent: ``what``, the same words each time, is wrong.

        ``error`` gives details, of the first time.
        """
        self.counts[client] += 1
        self.warn(
            client, what,
            "What %s sent in round %d is not recorded, and the federation goes on: %s "
            "(%s).",
            *(client[:80], round, what, " ".join(str(error).split())[:500]),
        )  # fmt: skip

    def warn(self, client: str, what: str, text: str, *arguments: object) -> None:
        """Log a warning, the first time that there is this to say of this client."""
        if (client, what) not in self._said:
            self._said.add((client, what))
            _log.warning(text, *arguments)

    @contextmanager
    def stop_on_failure(self) -> Iterator[None]:
        """Record nothing more where the disk is full, or the folder gone or closed.

        What was recorded is no whole federation: renaming takes no room on a disk.
        """
        try:
            yield
        except Exception as error:
            self.has_stopped = True
            with suppress(OSError):
                (self._folder / BUNDLE).replace(self._folder / INCOMPLETE)
            _log.error(
                "The recording of %s stops, and the federation goes on. What was "
                "recorded of it is not whole, and no run is made of it: %s",
                *(self._folder, error),
            )

    @contextmanager
    def only_said(self, kind: type[PrivauditError] = PrivauditError) -> Iterator[None]:
        """Say what keeps a recording from becoming a run, in place of raising it."""
        try:
            yield
        except kind as error:
            _log.error("%s is recorded, and no run yet: %s", self._folder, error)


_HEAVIEST = 2.0**63  # of a weight: sums of uploads are made in float32


class RoundWriter:
    """Holds the messages of one round, and writes them to a transcript.

    Args:
        folder: The transcript's; it is emptied.

    Attributes:
        messages: What was sent so far in the round ``number``, in that order.
        received: What the server sent in it, by client, without repetitions.
        uploaders: Who sent an upload in it.
        end: The end of the hash chain, behind what was written.
        seconds: How long each written round took, from its first message to its last.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = TranscriptFolder(folder)
        self._folder.clear()
        self.end = ChainEnd()
        self.seconds = list[float]()
        self._began = 0.0
        self.begin(0)

    def begin(self, number: int) -> None:
        """Begin a round, and forget the one before. Messages are looked up by client."""
        self.number, self._tensors = number, RoundTensors()
        self.messages, self.uploaders = list[Message](), set[str]()
        self.received = defaultdict[str, list[Tensors]](list)

    def checked(
        self, client: str, sent: Any, declared: Aggregation, weight: Any
    ) -> dict[str, Tensor]:
        """Return what a client sent, with its weight, as it is recorded.

        Raises:
            ConfigError: It cannot be read again, weighs nothing that is a number, has a
                tensor of the weight's name beside a weight, or is the client's second
                in this round.
        """
        if client in self.uploaders:
            raise ConfigError("it is the second update in this round")
        held, name = {str(n): one for n, one in sent.items()}, declared.weight
        check_limit(
            "line", sum(100 + 6 * len(n) for n in held), "The list of its arrays"
        )
        if not held:
            raise ConfigError("nothing is in it")
        if name is not None:
            if weight is not None and name in held:
                raise ConfigError(
                    f"{shown(name)} is the name of a tensor and of the recorder's weight. "
                    "Give the weight another name"
                )
            given = held.get(name) if weight is None else weight
            held[name] = torch.tensor(checked_weight(given), dtype=torch.float64)
        return {n: self.hold(n, one) for n, one in held.items()}

    def hold(self, name: str, value: Any) -> Tensor:
        """Return a tensor as it is now: the federation may go on to change it."""
        if self._tensors.holds(value):
            return value
        try:
            tensor = torch.as_tensor(value).detach().cpu()
            check_limit("tensors", tensor.nbytes, "It")
            if tensor.dtype not in SAFETENSORS_TYPES or tensor.is_complex():
                raise TypeError(f"there are no files of {tensor.dtype}")
            return self._tensors.copy_of(tensor)
        except Exception as error:  # whatever others call a tensor
            raise ConfigError(
                f"{shown(str(name))} was to be recorded, but it is no tensor ({error}). "
                "Give tensors or numeric arrays by name."
            ) from None

    def add(self, message: Message) -> None:
        """Take a message of this round; a broadcast that is repeated counts once."""
        if not self.messages:
            self._began = time.perf_counter()
        if message.kind == "broadcast":
            before = self.received[message.receiver]
            if any(are_same(one, message.tensors) for one in before):
                return
            before.append(message.tensors)
        if message.kind in UPLOAD_KINDS:
            self.uploaders.add(message.sender)
        self.messages.append(message)

    def models_of(self, clients: Iterable[str]) -> dict[str, Tensors]:
        """Return what each client was sent in this round.

        Where all who got it got the same, the others have it, too: one global model.
        """
        sent = [one for each in self.received.values() for one in each]
        if sent and all(are_same(one, sent[0]) for one in sent):
            return dict.fromkeys(clients, sent[0])
        return {c: self.received[c][-1] for c in clients if c in self.received}

    def write(self) -> None:
        """Write the round, and forget it."""
        if self.messages:
            self.seconds.append(round(time.perf_counter() - self._began, 4))
            self.end = self._folder.write(
                self.number, self.messages, self.end, self._tensors
            )
        self.begin(self.number)


def are_same(one: Tensors, other: Tensors) -> bool:
    """Say whether two messages hold the same tensors: equal ones are held once."""
    return one.keys() == other.keys() and all(t is other[n] for n, t in one.items())


NAMED = 5  # tensors in a setting, clients in a line of the log: at most
_FOLLOWS = {
    "partial": "what it trains of these is not seen, and attacks take them as the server "
    "sent them.",
    "reshaped": "no weights move that could be read. Models are attacked by what they "
    "answer; attacks on weights are left out, and so are these clients where others send "
    "the shape received. update-watch says nothing, server-aggregate needs one shape.",
}
"""What an audit can and cannot show where uploads are of another form."""
_UNSENT = (
    "what they changed in it is not seen. Attacks on weights are left out, update-watch "
    "fails, and without any broadcast all scenarios but the server's own. Record what "
    "the server sends, too."
)


def unlike(sent: Mapping[str, Any], received: Mapping[str, Any]) -> dict[str, Any]:
    """Return, as settings, how an upload is of another form than what was received."""
    both = sent.keys() & received.keys()
    coarse = sorted(
        {
            str(sent[name].dtype)
            for name in both
            if sent[name].dtype.itemsize < received[name].dtype.itemsize
        }
    )
    settings: dict[str, Any] = {"quantised": coarse} if coarse else {}
    if kept := sorted(received.keys() - both):
        unseen = first_of(kept, NAMED)
        settings["partial"] = (
            f"{len(both)} of {len(received)} tensors, without {unseen}"
        )
    if odd := sorted(n for n in both if sent[n].shape != received[n].shape):
        settings["reshaped"] = (
            f"{len(odd)} of {len(both)} tensors in another shape than it received, "
            f"{first_of(odd, NAMED)}"
        )
    return settings


def checked_weight(weight: Any) -> float:
    """Return what weighs an update."""
    try:
        value = float(weight)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        value = math.nan
    if not 0 <= value <= _HEAVIEST:
        raise ConfigError(
            f"its weight is {shown(str(weight))}, and should be one finite number, 0 or "
            "more"
        )
    return value


def _version_of(library: str) -> str:
    """Return a library's version; a nightly build's package may bear another name."""
    with suppress(PackageNotFoundError):
        return version(library)
    return "unknown"


class Recorder:
    """Writes a federation down as a run folder that can be audited.

    Rounds count from 0. The last model that the server sends bears the number of rounds.
    It raises where it is called wrongly, and never for what a client sent, which is left
    out with a warning; nor where it cannot write: then it stops, and no run is made.

    Example:
        >>> import numpy as np, tempfile
        >>> from privaudit.datasets.split import PUBLIC, TEST
        >>> from privaudit.runs.ledger import Ledger
        >>> owner = np.array([0, 0, 1, 1, *[PUBLIC] * 10, TEST])
        >>> ledger = Ledger(owner, np.array([True, False] * 2 + [False] * 11))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Recorder(f"{folder}/run", ledger=ledger, weight="records") as recorder:
        ...         for client in ("client-0", "client-1"):
        ...             recorder.broadcast(0, client, {"w": torch.zeros(2)})
        ...             _ = recorder.update(0, client, {"w": torch.ones(2)}, weight=1)
        ...         for client in ("client-0", "client-1"):
        ...             recorder.broadcast(1, client, {"w": torch.ones(2)})
        ...     len(recorder.run.transcript)  # and two releases of the last model
        8

    Args:
        folder: Of the run: new, or empty.
        aggregation: What the server makes of uploads: their weighted "mean", a function
            of their "sum", or it uses each, "individual".
        weight: The name of the number that weighs an upload in the mean; it is recorded
            beside the upload's tensors. None where all weigh alike.
        uploads: Whether clients send "models", or "differences" from what they received.
        ledger: The truth about members, or its file, if it may be kept with the run.
            Without one ``privaudit import`` ends what is begun here.
        trainer: The method, in your words; by default the folder's name.
        model: The model, in your words.
        dataset: The data, in your words.
        settings: What a reader of the report should know besides.
        claim: The epsilon that the method claims.
        randomness: Where its noise comes from: "system", or "seed".
        model_hash: SHA-256 of the frozen weights, if there are any.
        data_hash: SHA-256 of the records.
        publish: Whether the last broadcast model is given away, if no other is recorded.
        library: Which trains, by its package's name: the report's advice is for it.

    Raises:
        ConfigError: The folder holds something, or an argument is out of range.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        aggregation: Literal["mean", "sum", "individual"] = "mean",
        weight: str | None = None,
        uploads: Literal["models", "differences"] = "models",
        ledger: "Ledger | str | Path | None" = None,
        trainer: str = "",
        model: str = "",
        dataset: str = "",
        settings: Mapping[str, Any] | None = None,
        claim: Claim | None = None,
        randomness: Randomness = "system",
        model_hash: str = "",
        data_hash: str = "",
        publish: bool = True,
        library: str = "torch",
    ) -> None:
        self.folder, self.publish, self._library = Path(folder), publish, library
        if isinstance(ledger, str | Path):
            ledger = Ledger.load(Path(ledger))
        self.ledger = ledger
        self._is_claimed = bool(claim and claim.epsilon is not None)
        try:
            self._bundle = Bundle(
                recorder=f"privaudit {version('privaudit')}",
                rounds=0,
                clients=(),
                aggregation=Aggregation(
                    kind=aggregation, weight=weight, uploads=uploads
                ),
                trainer=trainer or self.folder.name,
                model=model,
                dataset=dataset,
                settings=dict(settings or {}),
                model_hash=model_hash,
                data_hash=data_hash,
                libraries={name: _version_of(name) for name in ("torch", library)},
                length=0,
                claimed=DeclaredClaim(**asdict(claim or Claim(source="nobody's"))),
                randomness=randomness,
            )
        except ValidationError as error:
            raise ConfigError(readable(error, "recording")) from None
        for name in (HEADER, BUNDLE, INCOMPLETE):
            if (self.folder / name).exists():
                raise ConfigError(
                    f"{self.folder.absolute()} holds a {name}: a federation is recorded there "
                    "already. Take another folder, or remove that one."
                )
        check_place(self.folder, fresh=False)
        make_private_folder(self.folder)
        clear_run(self.folder)
        self._rounds = RoundWriter(self.folder / "transcript")
        remove_unfinished(self.folder)
        self._lock = threading.RLock()
        self.omitted = Omissions(self.folder)
        self._clients: dict[str, int] = {}  # their numbers
        self._mechanisms: list[dict[str, Any]] = []
        self._engines: dict[str, EngineNote] = {}  # of this round, by client
        self._uploads = -1  # the last round with one
        self._has_released, self._is_closed = False, False
        self.run: Run | None = None
        self._note()

    def broadcast(self, round: int, clients: str | Sequence[str], tensors: Any) -> None:
        """Record what the server sent to clients; the same twice counts once.

        Args:
            round: From 0; the model that follows the last round bears their number.
            clients: Name of the client, or of all that it was sent to.
            tensors: Tensors or arrays by name.

        Raises:
            ConfigError: An earlier round, a closed recorder, or nothing that is sent.
        """
        round = as_int(round)
        if not isinstance(tensors, Mapping):
            raise ConfigError(
                f"A broadcast was given as a {type(tensors).__name__}. Give tensors or "
                "arrays by name, as in the uploads."
            )
        with self._lock:
            for one in [clients] if isinstance(clients, str) else clients:
                tensors = self._take(round, one, "broadcast", SERVER, one, tensors)

    def update(self, round: int, client: str, tensors: Any, weight: Any = None) -> bool:
        """Record what a client sent to the server, as it was sent; return whether it was.

        Tensors are not multiplied by any weight, which may be among them. With a warning
        left out is what is no tensors, has no weight that is a finite number of 0 or
        more, or a tensor of its name beside it, or is the client's second in this round.

        Raises:
            ConfigError: As :meth:`broadcast`, or there is a weight, and none is declared.
        """
        round = as_int(round)
        declared = self._bundle.aggregation
        if declared.weight is None and weight is not None:
            raise ConfigError(
                f"An update of {client} has the weight {weight}, and no name is declared "
                "for weights. Give both, or neither."
            )
        alone = declared.kind == "individual"
        kind: Kind = "individual-update" if alone else "update"
        with self._lock:
            self._begin_round(round, kind)
            try:
                sent = self._rounds.checked(client, tensors, declared, weight)
            except Exception as error:  # whatever clients send
                self.omitted.leave_out(client, round, "it is no update", error)
                return False
            self._take(round, client, kind, client, SERVER, sent)
            self._uploads = max(self._uploads, round)
            self._see_form(client, sent)
            return True

    def _see_form(self, client: str, sent: Tensors) -> None:
        """Declare that an upload is of another form than what its client received."""
        received = self._rounds.received.get(client, [{}])
        form = unlike(sent, received[-1])
        for what, follows in _FOLLOWS.items():
            if what in form:
                said = "%s sends %s: %s"
                self.omitted.warn("", what, said, client, form[what], follows)
        self.declare_once(**form)

    def summed(
        self, round: int, clients: Sequence[str], tensors: Mapping[str, Any]
    ) -> None:
        """Record the sum of what clients sent, as secure aggregation showed it."""
        round = as_int(round)
        with self._lock:
            order = torch.tensor([self._number(client) for client in clients])
            who = {"clients": order}
            self._take(round, "", "survivors", SERVER, "clients", who)
            self._take(round, "", "sum", "clients", SERVER, tensors)
            self._uploads = max(self._uploads, round)

    def masked(self, round: int, client: str, tensors: Mapping[str, Any]) -> None:
        """Record a client's masked upload, of which the server learns nothing alone."""
        round = as_int(round)
        with self._lock:
            self._take(round, client, "masked", client, SERVER, tensors)
            self._uploads = max(self._uploads, round)

    def release(self, client: str, tensors: Mapping[str, Any]) -> None:
        """Record the model of a client that is given away, after the last round."""
        with self._lock:
            after = max(self._rounds.number, self._uploads + 1)
            self._take(after, client, "release", client, PUBLIC, tensors)
            self._has_released = True

    def declare(self, **settings: Any) -> None:
        """Add settings that are known only after the recording began.

        Raises:
            ConfigError: One is nothing that JSON holds, or the recorder is closed.
        """
        with self._lock:
            self._refuse_closed("settings")
            both = {**self._bundle.settings, **settings}
            try:
                self._bundle = Bundle(**{**dict(self._bundle), "settings": both})
            except ValidationError as error:
                raise ConfigError(readable(error, "recording")) from None

    def declare_once(self, **settings: Any) -> None:
        """Add those of the settings that nobody declared before."""
        with self._lock:
            known = self._bundle.settings
            if new := {n: value for n, value in settings.items() if n not in known}:
                self.declare(**new)

    def mechanism(self, round: int, event: MechanismEvent) -> None:
        """Record a privacy mechanism as it was applied in a round."""
        round = as_int(round)
        with self._lock:
            self._refuse_closed("a mechanism")
            add_to_groups(self._mechanisms, round, event.to_json())

    def engine(self, round: int, client: str, note: EngineNote) -> None:
        """Record what a client's privacy engine did in training, beside its upload.

        In each round what is least protected counts, and who notes nothing is not.
        """
        round = as_int(round)
        with self._lock:
            self._begin_round(round, "note")
            self._engines[client] = note

    def _end_engines(self) -> None:
        """Record a round's engines, as mechanisms and as they were noted."""
        number, notes = self._rounds.number, self._engines
        self._engines = {}
        if not notes:
            return
        sent = sorted(self._rounds.uploaders or notes)
        events = events_of(notes.get(client) for client in sent)
        if any(group["unit"] == "client" for group in self._mechanisms):
            events = []  # epsilons of unlike units do not add up
            self.omitted.warn(
                "", "units",
                "Another mechanism protects clients: what Opacus does for records is "
                "noted, and not in the declared epsilon.",
            )  # fmt: skip
        for event in events:
            add_to_groups(self._mechanisms, number, event.to_json())
        noted = [NotedEngine(round=number, client=c, note=n) for c, n in notes.items()]
        changed: dict[str, Any] = {"engines": (*self._bundle.engines, *noted)}
        asked = [(n.epsilon, n.delta) for n in notes.values() if n.epsilon and n.delta]
        if asked and not self._is_claimed:
            most, delta = max(asked)
            said = f"Opacus' accountant, when the app asked it in round {number}"
            claim = DeclaredClaim(epsilon=most, delta=delta, source=said)
            changed["claimed"] = claim
        self._bundle = self._bundle.model_copy(update=changed)

    def close(self) -> Run | None:
        """Write what is left, and end the run if there is a ledger.

        Returns:
            The run; None without a ledger, or where the recorder had to stop.

        Raises:
            ConfigError: Nothing was sent, or the ledger knows other clients.
        """
        with self._lock:
            if not self._is_closed:
                # Given away is the model that follows the last round, if it was broadcast.
                after, wants = self._rounds.number, self.publish
                if wants and not self._has_released and after > self._uploads >= 0:
                    for client, model in self._rounds.models_of(self._clients).items():
                        self._take(after, client, "release", client, PUBLIC, model)
                self._is_closed = True
                self._write_round()
                if self.ledger is not None and not self.omitted.has_stopped:
                    with self.omitted.only_said(StorageError):
                        self.run = finish_recording(self.folder, self.ledger)
            return self.run

    def end(self) -> Run | None:
        """Close as :meth:`close` does, and say in the log what that would raise."""
        with self.omitted.only_said():
            self.close()
        return self.run

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close, or stop after an error."""
        self.close() if kind is None else self.stop()

    def stop(self) -> None:
        """Record no more; ``privaudit import --stopped`` makes a run of what is there."""
        self._is_closed = True

    def _refuse_closed(self, what: str) -> None:
        if self._is_closed:
            raise ConfigError(
                f"{what} came after the recording of {self.folder} was closed. Record "
                "before that."
            )

    def _take(
        self,
        round: int,
        client: str,
        kind: Kind,
        sender: str,
        receiver: str,
        tensors: Mapping[str, Any],
    ) -> Tensors:
        """Buffer a message."""
        self._begin_round(round, kind)
        if not tensors:
            raise ConfigError(
                f"A {kind} of round {round} was to be recorded, but nothing is in it."
            )
        if client:
            self._number(client)
        held = {str(n): self._rounds.hold(n, one) for n, one in tensors.items()}
        if not self.omitted.has_stopped:
            self._rounds.add(Message(round, sender, receiver, kind, held))
        return held

    def _begin_round(self, round: int, kind: str) -> None:
        """Write the round before, where a message belongs to a later one."""
        if type(round) is not int or not 0 <= round < MOST:
            raise ConfigError(
                f"A {kind} of round {shown(str(round))} was to be recorded. Count rounds "
                f"from 0 in whole numbers below {MOST:,}."
            )
        if self._is_closed or round < self._rounds.number:
            raise ConfigError(
                f"A {kind} of round {round} was to be recorded, but that round is "
                "written already. Record messages round by round, as they are sent."
            )
        if round > self._rounds.number:
            self._write_round()
            self._rounds.begin(round)

    def _number(self, client: str) -> int:
        return self._clients.setdefault(check_client_name(client), len(self._clients))

    def _write_round(self) -> None:
        """Write a round's messages, and let bundle.json count them."""
        if not self.omitted.has_stopped:
            with self.omitted.stop_on_failure():
                self._say_who_is_recorded()
                self._end_engines()
                self._rounds.write()
                self._note()

    def _say_who_is_recorded(self) -> None:
        """Say, after the first round, whose uploads were recorded, and of how many.

        By a logger below the library's own: what is shown of that is shown of this.
        """
        if self._bundle.rounds or self._uploads < 0:
            return
        who = sorted(self._rounds.uploaders)
        known = len(who) if self.ledger is None else len(self.ledger.clients)
        is_short = len(who) < known
        logging.getLogger(f"{self._library}.privaudit").log(
            logging.WARNING if is_short else logging.INFO,
            "In round %d uploads of %d of %d clients were recorded: %s%s",
            *(self._rounds.number, len(who), known),
            first_of(who, NAMED),
            ". Of clients that never send one nothing can be attacked." * is_short,
        )
        if unsent := [one for one in who if not self._rounds.received.get(one)]:
            self.omitted.warn(
                "", "broadcast", "No broadcast to %s was recorded in round %d: %s",
                *(first_of(unsent, NAMED), self._rounds.number, _UNSENT),
            )  # fmt: skip

    def _note(self) -> None:
        changed = {
            "rounds": self._uploads + 1,
            "ended": self._is_closed,
            "clients": tuple(self._clients),
            "seconds": tuple(self._rounds.seconds[: self._uploads + 1]),
            "length": self._rounds.end.length,
            "head": self._rounds.end.head,
            "mechanisms": self._mechanisms,
        }
        if left_out := dict(self.omitted.counts):
            changed["settings"] = self._bundle.settings | {"left_out": left_out}
        self._bundle = self._bundle.model_copy(update=changed)
        write_json(self.folder / BUNDLE, self._bundle.model_dump(mode="json"))
