//! A holder that was paused too long resumes and writes: four resources, and how each of them refuses it.
//!
//! `cargo run -p tenure --example guarded_write` runs on a store in memory; an address or `TENURE_STORE` names another.

use std::error::Error;
use std::io::Write;

use rusqlite::Connection;
use tenure::Token;
use tenure::fence::{FenceVerifier, StaleToken};
use tenure::lock::{Guard, Locks};
use tenure::session::Session;
use tenure::store::{Op, Revision, Store, Txn};
use tenure::{LockName, Namespace};

const DATA: &str = "/example/guarded_write/balance";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = Store::open(&address.as_deref().unwrap_or("memory:").parse()?).await?;
    let (early, late) = (Session::open(store.clone())?, Session::open(store.clone())?);
    let namespace = Namespace::parse("example")?;
    let (first, second) = (Locks::new(&early, &namespace), Locks::new(&late, &namespace));

    // The first holder is about to write when its machine stops. Nothing that runs on that machine can help now.
    let paused = first.lock("account").await?;
    print(format_args!("the first holder has token {}", paused.token()))?;
    // Its lock ends: here an operator breaks it, elsewhere its lease would expire.
    let name = LockName::parse("account")?;
    for holder in second.get(&name).await?.holders {
        second.break_hold(&name, &holder, "it is paused").await?;
    }
    let guard = second.lock("account").await?;
    print(format_args!("the second holder has token {}", guard.token()))?;

    inside_the_store(&store, &paused, &guard).await?;
    in_memory(paused.token(), guard.token())?;
    in_sql(paused.token(), guard.token())?;
    over_http(paused.token(), guard.token())?;

    guard.release().await?;
    drop(paused);
    early.close().await?;
    late.close().await?;
    store.close().await;
    Ok(())
}

/// In the same store the write has the condition that the holder's key exists. No other check is needed.
async fn inside_the_store(store: &Store, paused: &Guard, guard: &Guard) -> Result<(), Box<dyn Error>> {
    let write = |value: &'static str| Txn::new().then(Op::put(DATA, value));
    let written = store.txn(guard.fence().guard(write("90"))).await?.succeeded;
    let stale = store.txn(paused.fence().guard(write("110"))).await?.succeeded;
    let value = store.get_key(DATA).await?.map(|pair| String::from_utf8_lossy(&pair.value).into_owned());
    print(format_args!("store: second wrote {written}, first wrote {stale}, it holds {value:?}"))?;
    store.txn(Txn::new().then(Op::delete(DATA))).await?;
    Ok(())
}

/// A resource in the memory of one process: the check and the write are one step, under one lock.
#[derive(Default)]
struct Account {
    verifier: FenceVerifier,
    balance: i64,
}

impl Account {
    fn set(&mut self, token: Token, balance: i64) -> Result<(), StaleToken> {
        self.verifier.admit("account", token)?;
        self.balance = balance;
        Ok(())
    }
}

fn in_memory(paused: Token, current: Token) -> Result<(), Box<dyn Error>> {
    let mut account = Account { balance: 100, ..Account::default() };
    account.set(current, 90)?;
    match account.set(paused, 110) {
        Ok(()) => return Err("a stale token was let in".into()),
        Err(stale) => print(format_args!("memory: {stale}; it holds {}", account.balance))?,
    }
    Ok(())
}

/// A database: the token is a column beside the data, and only ever grows.
fn in_sql(paused: Token, current: Token) -> Result<(), Box<dyn Error>> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, token INTEGER NOT NULL DEFAULT 0);
         INSERT INTO account (id, balance) VALUES (1, 100);",
    )?;
    let write = "UPDATE account SET balance = ?1, token = ?2 WHERE id = 1 AND token <= ?2";
    let written = database.execute(write, (90, current.0.0))?;
    // No row was changed: that is the refusal, and the caller must check it.
    let stale = database.execute(write, (110, paused.0.0))?;
    let balance: i64 =
        database.query_row("SELECT balance FROM account WHERE id = 1", (), |row| row.get(0))?;
    print(format_args!("sql: second changed {written} row, first changed {stale}, it holds {balance}"))?;
    Ok(())
}

/// A service: each request that changes something carries the token, as a header, and the service remembers the largest.
const HEADER: &str = "x-fence-token";

fn over_http(paused: Token, current: Token) -> Result<(), Box<dyn Error>> {
    let mut account = Account { balance: 100, ..Account::default() };
    let mut put = |token: Option<Token>, balance: i64| {
        let headers: Vec<(&str, String)> =
            token.map(|token| (HEADER, token.to_string())).into_iter().collect();
        serve(&mut account, &headers, balance)
    };
    let (second, first, unfenced) = (put(Some(current), 90), put(Some(paused), 110), put(None, 110));
    print(format_args!(
        "http: second got {second}, first got {first}, no token got {unfenced}, it holds {}",
        account.balance
    ))?;
    Ok(())
}

/// What the service does with `PUT /account`; the number is the status.
fn serve(account: &mut Account, headers: &[(&str, String)], balance: i64) -> u16 {
    let header = headers.iter().find(|(name, _)| *name == HEADER);
    let Some(token) = header.and_then(|(_, value)| value.parse().ok()).map(|token| Token(Revision(token)))
    else {
        // Precondition required: no client writes without a token.
        return 428;
    };
    match account.set(token, balance) {
        Ok(()) => 204,
        // Precondition failed: another holder had the lock since, so a retry is useless.
        Err(StaleToken { .. }) => 412,
    }
}

fn print(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
