"""Takes all of 0xA1 to 0xFF: the soft hyphen 0xAD is among them, and it does not print.

caught by: TestTask1Alphabet::test_every_byte_has_one_character
"""


def byte_of_character() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
