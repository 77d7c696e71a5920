"""A crew: the processes of a tile group that trains for real, one a device, over ``torch.distributed``.

`meeting` is how they find each other and notice who is gone, `member` what each of them does, `state` what
they would lose, `log` what they leave behind.
"""
