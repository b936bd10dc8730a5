"""LoRA fine-tuning by the Trainer, recorded: python finetune.py ledger.npz run."""

import sys

from owner import build, records
from transformers import Trainer, TrainingArguments

from privaudit import Ledger
from privaudit.recording.hugging_face import RecordingCallback


def train(ledger, folder):
    """Fine-tune on the ledger's members; return the run."""
    recording = RecordingCallback(
        folder, ledger=ledger, trainer="LoRA", model="GPT-2, random", dataset="codes"
    )
    arguments = TrainingArguments(
        output_dir=f"{folder}-checkpoints",
        learning_rate=1e-2,
        max_steps=120,
        save_steps=30,  # four checkpoints
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
    )
    members = [records[position] for position in ledger.members_of("client-0")]
    trainer = Trainer(build(), arguments, train_dataset=members, callbacks=[recording])
    trainer.train()
    return recording.recorder.run


if __name__ == "__main__":
    train(Ledger.load(sys.argv[1]), sys.argv[2])
