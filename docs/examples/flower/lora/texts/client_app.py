"""The client: trains adapters on its members, the texts whose coin fell heads."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from privaudit.recording.flower import members_of, name_partition
from texts.task import fit, texts, with_adapters

app = ClientApp()


@app.train(mods=[name_partition])
def train(message: Message, context: Context) -> Message:
    tensors = message.content["arrays"].to_torch_state_dict()
    members = members_of(context, "ledger.npz")
    epochs, at = context.run_config.get("epochs", 15), message.content["config"]
    tensors, loss = fit(tensors, members, epochs, seed=at["server-round"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(members)})
    content = {"arrays": ArrayRecord(tensors), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate(mods=[name_partition])
def evaluate(message: Message, context: Context) -> Message:
    net = with_adapters(message.content["arrays"].to_torch_state_dict())
    members = torch.as_tensor(members_of(context, "ledger.npz"))
    ids, labels = (values[members] for values in texts())
    with torch.no_grad():
        loss = net(input_ids=ids, labels=labels).loss.item()
    metrics = MetricRecord({"loss": loss, "num-examples": len(members)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
