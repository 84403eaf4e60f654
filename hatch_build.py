"""Puts the kernels and the chapters inside the package when a wheel is built.

In the repository they lie beside `tinymlx/`, where a reader looks for them. A wheel carries them as `tinymlx/metal_kernels`
and `tinymlx/weeks`, so that nothing but `tinymlx` lands in site-packages. An editable install copies nothing: there
`tinymlx.paths` finds the folders of the checkout, and an edit to a kernel takes effect.
"""

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("metal_kernels", "weeks")


class FoldersBesideThePackage(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":
            return
        for folder in FOLDERS:
            build_data["force_include"][folder] = f"tinymlx/{folder}"
