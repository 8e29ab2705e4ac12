//! The secret that a server and its clients share. It is in a file or a variable, never on a
//! command line, and is never shown.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::sys;

/// Longest token, bytes.
pub const TOKEN_MAX_BYTES: usize = 4096;

/// The variable that a token may be given in.
pub const TOKEN_VARIABLE: &str = "RUNCAP_TOKEN";

/// A secret that clients must know. It is never shown.
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Takes a token out of the environment, where nobody finds it any more. Call it while this
    /// process has one thread.
    ///
    /// # Errors
    /// When the variable holds no token.
    pub(crate) fn from_environment() -> Result<Option<Token>, String> {
        let taken = sys::secret::take_variable(TOKEN_VARIABLE);
        taken.map(|bytes| Token::new(bytes, TOKEN_VARIABLE)).transpose()
    }

    /// Reads a token from a file, which is a little longer than [`TOKEN_MAX_BYTES`] at most; white
    /// space around it is none of it.
    ///
    /// # Errors
    /// When the file cannot be read or holds no token.
    pub fn from_file(path: &Path) -> Result<Token, String> {
        let shown = path.display();
        let mut bytes = Vec::with_capacity(TOKEN_MAX_BYTES + 3);
        let read = File::open(path)
            .and_then(|file| file.take(TOKEN_MAX_BYTES as u64 + 3).read_to_end(&mut bytes));
        read.map_err(|error: io::Error| format!("cannot read the token file {shown}: {error}"))?;
        Token::new(bytes, &format!("the token file {shown}"))
    }

    /// The token in `text`; white space around it is none of it.
    ///
    /// # Errors
    /// When it holds no token.
    pub fn from_text(text: &str) -> Result<Token, String> {
        Token::new(text.as_bytes().to_vec(), "the text")
    }

    fn new(mut bytes: Vec<u8>, place: &str) -> Result<Token, String> {
        let token = bytes.trim_ascii().to_vec();
        bytes.fill(0);
        if token.is_empty() {
            return Err(format!("{place} holds no token: put at least one character in it"));
        }
        if token.len() > TOKEN_MAX_BYTES {
            return Err(format!("{place} holds more than {TOKEN_MAX_BYTES} bytes"));
        }
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(format!(
                "{place} holds a character that no header can carry: use visible ASCII"
            ));
        }
        Ok(Token(token))
    }

    /// Whether `candidate` is the token, in a time that depends on the candidate's length alone.
    pub fn is(&self, candidate: &[u8]) -> bool {
        let mut difference = self.0.len() ^ candidate.len();
        for (index, byte) in candidate.iter().enumerate() {
            let own = self.0[index % self.0.len()];
            // Kept from being shortened to the first difference.
            difference = std::hint::black_box(difference | usize::from(own ^ byte));
        }
        difference == 0
    }

    /// The token as the value of a header, which it can be whole.
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("a token is ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let token = Token(b"secret".to_vec());
        assert!(token.is(b"secret"));
        for wrong in ["", "s", "secre", "secret ", "secretsecret", "Secret", "terces", "secres"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn tokens_are_one_visible_word() {
        let token = |text: &str| Token::new(text.into(), "X").map(|token| token.0);
        assert_eq!(token(" abc\r\n"), Ok(b"abc".to_vec()));
        assert_eq!(token(&"a".repeat(TOKEN_MAX_BYTES)).map(|token| token.len()), Ok(4096));
        for wrong in ["", " \n", "a b", "a\u{7}", "é", &"a".repeat(TOKEN_MAX_BYTES + 1)] {
            assert!(token(wrong).is_err(), "{wrong}");
        }
    }
}
