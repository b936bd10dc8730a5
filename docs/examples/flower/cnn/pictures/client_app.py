"""The client: trains on its members, those of its pictures whose coin fell heads."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pictures.task import Net, fit, pictures
from privaudit.recording.flower import members_of, name_partition

app = ClientApp()


def received(message: Message) -> Net:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


@app.train(mods=[name_partition])
def train(message: Message, context: Context) -> Message:
    net, members = received(message), members_of(context, "ledger.npz")
    epochs, at = context.run_config.get("epochs", 20), message.content["config"]
    loss = fit(net, members, epochs, seed=at["server-round"])
    metrics = MetricRecord({"loss": loss, "num-examples": len(members)})
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate(mods=[name_partition])
def evaluate(message: Message, context: Context) -> Message:
    net, members = received(message), members_of(context, "ledger.npz")
    x, y = (values[torch.as_tensor(members)] for values in pictures())
    accuracy = (net(x).argmax(1) == y).float().mean().item()
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(members)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
