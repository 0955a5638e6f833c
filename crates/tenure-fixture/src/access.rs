//! Users and roles of an etcd, for tests of what a user may do. They go through etcd's JSON gateway, so that no client has to offer them.

use crate::etcd::Etcd;
use crate::member::EtcdMember;

/// What a role may do with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// Changes users and roles. A step that etcd refuses panics.
#[derive(Debug)]
pub struct AccessControl<'a> {
    member: &'a EtcdMember,
    /// Needed once authentication is enabled.
    token: Option<String>,
}

impl Etcd {
    /// Users and roles, while authentication is not enabled yet.
    pub fn access(&self) -> AccessControl<'_> {
        AccessControl::of(self.member(0))
    }
}

impl<'a> AccessControl<'a> {
    pub(crate) fn of(member: &'a EtcdMember) -> AccessControl<'a> {
        AccessControl { member, token: None }
    }

    /// The same as a user, for changes after authentication was enabled.
    ///
    /// # Panics
    /// If the user may not sign in.
    #[must_use]
    pub fn signed_in(self, name: &str, password: &str) -> AccessControl<'a> {
        let answer = self.post("authenticate", &format!(r#"{{"name":"{name}","password":"{password}"}}"#));
        let token = answer.split("\"token\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let token = token.unwrap_or_else(|| panic!("the answer has no token: {answer}"));
        AccessControl { token: Some(token.to_owned()), ..self }
    }

    /// Adds a user.
    ///
    /// # Panics
    /// If etcd refuses it.
    pub fn add_user(&self, name: &str, password: &str) -> &Self {
        self.post("user/add", &format!(r#"{{"name":"{name}","password":"{password}"}}"#));
        self
    }

    /// Adds a role.
    ///
    /// # Panics
    /// If etcd refuses it.
    pub fn add_role(&self, name: &str) -> &Self {
        self.post("role/add", &format!(r#"{{"name":"{name}"}}"#));
        self
    }

    /// Gives a role to a user.
    ///
    /// # Panics
    /// If etcd refuses it.
    pub fn give_role(&self, user: &str, role: &str) -> &Self {
        self.post("user/grant", &format!(r#"{{"user":"{user}","role":"{role}"}}"#));
        self
    }

    /// Lets a role use the keys below a prefix that ends in `/`.
    ///
    /// # Panics
    /// If etcd refuses it, or the prefix has no such end.
    pub fn grant(&self, role: &str, permission: Permission, prefix: &str) -> &Self {
        let kind = match permission {
            Permission::Read => "READ",
            Permission::ReadWrite => "READWRITE",
        };
        let end = format!("{}0", prefix.strip_suffix('/').expect("a granted prefix ends in '/'"));
        let (key, end) = (base64(prefix.as_bytes()), base64(end.as_bytes()));
        let permission = format!(r#"{{"permType":"{kind}","key":"{key}","range_end":"{end}"}}"#);
        self.post("role/grant", &format!(r#"{{"name":"{role}","perm":{permission}}}"#));
        self
    }

    /// Adds the user `root` with the role `root`, without which authentication cannot be enabled.
    ///
    /// # Panics
    /// If etcd refuses it.
    pub fn add_root(&self, password: &str) -> &Self {
        self.add_user("root", password).add_role("root").give_role("root", "root")
    }

    /// Enables authentication.
    ///
    /// # Panics
    /// If etcd refuses it.
    pub fn enable(&self) {
        self.post("enable", "{}");
    }

    fn post(&self, path: &str, document: &str) -> String {
        let answer = self.member.post_as(self.token.as_deref(), &format!("/v3/auth/{path}"), document);
        answer.unwrap_or_else(|error| panic!("{path} is refused: {error}"))
    }
}

/// Bytes as etcd's JSON takes them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let digit = usize::try_from(bits >> (18 - 6 * n) & 63).unwrap_or(0);
            text.push(if n <= chunk.len() { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn bytes_encode_as_base64() {
        for (bytes, text) in [(&b""[..], ""), (b"/", "Lw=="), (b"/a", "L2E="), (b"/tenure/", "L3RlbnVyZS8=")]
        {
            assert_eq!(base64(bytes), text);
        }
    }
}
