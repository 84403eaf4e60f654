"""The one exception that reaches a user as a single line."""


class UserError(Exception):
    """What the user gave cannot work. The message is one line: what is wrong, where, and what to do next.

    >>> raise UserError("model.safetensors: tensor model.norm.weight is missing; download the file again")
    """
