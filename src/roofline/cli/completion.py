"""`roofline completion`: what a shell needs to complete commands, options and names of the library."""

from __future__ import annotations

import click

VARIABLE = "_ROOFLINE_COMPLETE"
WHERE = {
    "bash": "roofline completion bash > ~/.roofline-complete.bash\necho '. ~/.roofline-complete.bash' >> ~/.bashrc",
    "zsh": "roofline completion zsh > ~/.roofline-complete.zsh\necho '. ~/.roofline-complete.zsh' >> ~/.zshrc",
    "fish": "roofline completion fish > ~/.config/fish/completions/roofline.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(WHERE)))
def completion_command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and names of models, hardware and engines.

    \b
    bash:  roofline completion bash > ~/.roofline-complete.bash
           echo '. ~/.roofline-complete.bash' >> ~/.bashrc
    zsh:   roofline completion zsh > ~/.roofline-complete.zsh
           echo '. ~/.roofline-complete.zsh' >> ~/.zshrc
    fish:  roofline completion fish > ~/.config/fish/completions/roofline.fish
    Then open a new shell and press Tab after 'roofline estimate lla'.
    """
    from click.shell_completion import get_completion_class

    from roofline.cli import cli

    known = get_completion_class(shell)
    assert known is not None, f"click completes {shell}"
    steps = "\n".join(f"#   {line}" for line in WHERE[shell].splitlines())
    script = known(cli, {}, "roofline", VARIABLE)
    click.echo(f"# To keep it:\n{steps}\n{script.source_template % script.source_vars()}")
