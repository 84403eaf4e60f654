"""From the byte to the character: the table that encodes, where the one that decodes is asked for.

caught by: TestTask1Alphabet::test_every_byte_has_one_character
"""


def byte_of_character() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + index) for index, byte in enumerate(others)}
