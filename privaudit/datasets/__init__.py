"""Data sets, their partition among clients, and the member and non-member split."""

_NAMES = {
    "cifar": "cifar10 cifar100",
    "coop_split": "caltech101 dtd eurosat fgvc-aircraft flowers102 food101 oxford-pets "
    "stanford-cars sun397 ucf101",
    "digits": "drawn-digits",
    "image_folder": "domainnet multi-domain office-caltech10 office-home pacs",
    "labelled_tables": "chexpert image-table mimic-notes text-table",
    "scenes": "scenes-far scenes-vqa",
}
MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Modules of the names that are not their module's own: a look-up imports that alone."""
IN_TOOLS = (
    *("caption-bank", "mnli", "mnli-mismatched", "mscoco-captions", "nocaps", "qnli"),
    *("scenes-letters", "scienceqa", "squad", "squad-articles", "sst-2"),
)
