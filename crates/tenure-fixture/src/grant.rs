//! An etcd with authentication and one user that has one grant, for every test that starts one: `TENURE_ETCD_GRANT=/tenure/`.
//!
//! It shows that a suite written without users passes with the least privilege: `cargo xtask least-privilege` runs the tests of the CLI so.
//! A test that configures users itself starts its etcd with [`Builder::without_auth`](crate::Builder::without_auth).

use crate::access::{AccessControl, Permission};
use crate::member::EtcdMember;

/// The variable with the prefix that the user may read and write.
const VARIABLE: &str = "TENURE_ETCD_GRANT";

/// The user of [`granted_user`], as `name:password`.
const USER: &str = "granted:granted";

/// The user of [`root_user`], as `name:password`.
const ROOT: &str = "root:root";

/// The user that tests sign in as, as `name:password`; none unless `TENURE_ETCD_GRANT` is set.
pub fn granted_user() -> Option<&'static str> {
    std::env::var_os(VARIABLE).map(|_| USER)
}

/// The user of an administrator, as `name:password`; none unless `TENURE_ETCD_GRANT` is set. For what a test checks or prepares outside
/// of the grant, never for the command under test.
pub fn root_user() -> Option<&'static str> {
    std::env::var_os(VARIABLE).map(|_| ROOT)
}

/// The cost of hashing passwords where the variable is set: the cheapest, because it is the privileges that are tested. With the server's
/// default, ten commands that start at once keep a processor busy for a second, and leases with a short TTL lapse.
pub(crate) fn bcrypt_cost() -> Option<u32> {
    std::env::var_os(VARIABLE).map(|_| 4)
}

/// Enables authentication if the variable requires it.
///
/// # Panics
/// If the member refuses a step.
pub(crate) fn enable(member: &EtcdMember) {
    let Ok(prefix) = std::env::var(VARIABLE) else { return };
    let (name, password) = USER.split_once(':').expect("a name and a password");
    let (_, root_password) = ROOT.split_once(':').expect("a name and a password");
    let access = AccessControl::of(member);
    access.add_root(root_password).add_user(name, password).add_role(name);
    access.grant(name, Permission::ReadWrite, &prefix).give_role(name, name).enable();
}
