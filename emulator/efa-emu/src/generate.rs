// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Manual pages and shell completions, generated from the definition of the command line.
//!
//! The program writes them itself: `cargo install` installs none, and those of packages have to match the program.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;

const NAME: &str = "efa-emu";

/// Sections of the manual page that the command line's definition lacks.
const MORE: &str = r#".SH EXIT STATUS
0 after SIGTERM or SIGINT. 1 after an error, with the reason on the standard error. 2 if the command line is wrong.
\fBctl\fR ends with 1 if a reply is an error.
.SH EXAMPLES
A device, and the options of QEMU that attach it to a guest:
.PP
.nf
efa\-emu \-\-device socket=efa.sock \-\-control efa.control &
qemu\-system\-x86_64 ... \-m 1G \e
  \-object memory\-backend\-memfd,id=ram,size=1G,share=on \-machine q35,memory\-backend=ram \e
  \-device '{"driver":"vfio\-user\-pci","socket":{"type":"unix","path":"efa.sock"}}'
efa\-emu ctl efa.control '{"command":"state"}'
.fi
.SH SEE ALSO
.BR efa\-emu\-lab (1),
.BR efa\-emu\-ctl (1),
.BR efa\-emu\-probe (1),
.BR efa\-emu\-schema (1),
.BR qemu\-system\-x86_64 (1)
.PP
Documentation/emulator.md of the source describes the devices, and emulator\-control.md beside it the control commands; Debian's
package has them in /usr/share/doc/efa\-emu.
"#;

/// Writes all pages and completions into a folder, which is created if necessary.
///
/// # Errors
///
/// The folder can't be created or written to.
pub(crate) fn generate(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Args::command(), folder)?;
    fs::write(page(folder), manual()?)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut Args::command(), NAME, folder)?;
    }
    Ok(())
}

fn page(folder: &Path) -> PathBuf {
    folder.join(format!("{NAME}.1"))
}

/// Returns the manual page of the program itself.
fn manual() -> io::Result<Vec<u8>> {
    // The subcommand `help` has no page of its own, so it is not listed.
    let man = Man::new(Args::command().disable_help_subcommand(true));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    man.render_subcommands_section(&mut page)?;
    page.extend_from_slice(MORE.as_bytes());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_and_command_is_in_the_pages() {
        let folder = tempfile::tempdir().unwrap();
        generate(folder.path()).unwrap();
        let text = fs::read_to_string(page(folder.path())).unwrap();
        for argument in Args::command().get_arguments() {
            if let Some(name) = argument.get_long() {
                let name = format!("\\-\\-{}", name.replace('-', "\\-"));
                assert!(text.contains(&name), "{name}");
            }
        }
        assert!(!text.contains("help(1)"), "this page does not exist");
        for command in Args::command().get_subcommands() {
            let name = format!("{NAME}-{}.1", command.get_name());
            assert_eq!(folder.path().join(&name).exists(), !command.is_hide_set(), "{name}");
        }
        for name in ["efa-emu.bash", "efa-emu.fish", "_efa-emu"] {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(text.contains("list-profiles"), "{name}");
        }
    }
}
