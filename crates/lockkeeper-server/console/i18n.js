// All words of the console, English and Chinese. One key per line; a test reads this file as text.

export const WORDS = {
  // Frame
  skip: ["Skip to content", "跳到正文"],
  overview: ["Overview", "总览"],
  locks: ["Locks", "锁"],
  sessions: ["Sessions", "会话"],
  events: ["Events", "事件"],
  cells: ["Cells", "单元"],
  find: ["Find a lock", "查找锁"],
  keyboard: ["Keyboard", "键盘"],
  language: ["中文", "English"],
  theme: ["Theme: {0}", "主题：{0}"],
  theme_key: ["Theme", "主题"],
  system: ["system", "跟随系统"],
  light: ["light", "浅色"],
  dark: ["dark", "深色"],
  close: ["Close", "关闭"],
  cancel: ["Cancel", "取消"],
  copy: ["Copy", "复制"],
  copied: ["Copied", "已复制"],

  // Connection
  live: ["Live", "实时"],
  connecting: ["Connecting", "正在连接"],
  reconnecting: ["Reconnecting", "正在重连"],
  stale: ["Stale {0}", "已过时 {0}"],
  store_down: ["Store down", "存储不可用"],
  sign_in: ["Sign in", "登录"],
  banner_reconnecting: ["Connection lost {0} ago. You see the state at {1}; nothing counts down until it is back.", "连接已断开 {0}。当前显示 {1} 的状态；恢复之前不再倒计时。"],
  banner_stale: ["No data for {0}. You see the state at {1}; locks may have changed hands since.", "已有 {0} 没有数据。当前显示 {1} 的状态，此后锁可能已经易手。"],
  banner_store: ["The store does not answer. Holders keep their locks until their own deadline; no new grants.", "存储没有应答。持有者在各自期限之前仍持有锁；不会有新的授予。"],
  banner_token: ["The service asks for a token. Nothing is shown without one.", "服务要求令牌；没有令牌就不显示任何内容。"],
  try_now: ["Try now", "立即重试"],
  no_events: ["The service sends no events. The page asks for the state instead.", "服务没有发送事件；页面改为定时查询状态。"],

  // Overview
  held: ["Held", "持有中"],
  waiting: ["Waiting", "等待中"],
  longest_wait: ["Longest wait", "最长等待"],
  grants: ["Grants", "授予"],
  per_second: ["per second", "次/秒"],
  of_names: ["of {0} names", "共 {0} 个名字"],
  in_lines: ["in {0} lines", "分布在 {0} 条队列"],
  no_waiters: ["no ticket waits", "没有票在等待"],
  waited_note: ["median wait {0}, 99 % {1}", "等待中位数 {0}，99 % {1}"],
  last_minute: ["in the last minute", "最近一分钟"],
  most_contended: ["Most contended", "争用最多"],
  no_contention: ["No ticket waits. Every lock that is asked for is granted at once.", "没有票在等待；每次请求都立即得到授予。"],
  all_locks: ["All locks", "全部锁"],
  all_events: ["All events", "全部事件"],
  recent_events: ["Recent events", "最近事件"],
  no_recent: ["Nothing has happened since this page was opened.", "打开本页以来尚无事件。"],
  store: ["Store", "存储"],
  healthy: ["Healthy", "健康"],
  unknown: ["Unknown", "未知"],
  store_hidden: ["This token may not see the store.", "此令牌无权查看存储。"],
  service: ["service {0}", "服务 {0}"],
  instance: ["instance", "实例"],
  identity: ["data", "数据"],
  event_stream: ["events", "事件"],
  fresh_here: ["through this instance at once", "经本实例立即可见"],
  fresh_within: ["others’ within {0}", "他处的变化在 {0} 内"],
  fresh_asked: ["by asking every few seconds", "每隔几秒查询"],
  answer_time: ["Answer time", "应答时间"],
  in_jeopardy: ["In jeopardy", "危险期"],
  promises: ["Promises", "承诺"],
  fair: ["Fair", "公平"],
  fair_text: ["first come, first served", "先到先得"],
  unfair_text: ["no line: clients try again and again", "没有队列：客户端反复尝试"],
  fenced: ["Fenced", "有栅栏号"],
  fenced_text: ["every exclusive grant has a higher number", "每次独占授予的编号都更大"],
  unfenced_text: ["grants have no number", "授予没有编号"],
  survives: ["Survives failover", "可承受故障切换"],
  survives_text: ["locks and fences outlive the loss of a machine", "丢失一台机器后锁与栅栏号仍在"],
  durable: ["Durable", "持久"],
  durable_text: ["locks outlive a restart, not the loss of the disk", "存储进程重启后仍在；磁盘丢失则不在"],
  volatile_text: ["locks end with the store’s process", "锁随存储进程结束"],
  kinds: ["Readers, permits, cells", "读者、许可、单元"],
  kinds_all: ["all supported by this store", "此存储全部支持"],
  kinds_some: ["without {0}", "不支持 {0}"],
  shared_sessions: ["Any instance serves", "任一实例均可服务"],
  shared_text: ["sessions belong to the data", "会话属于数据"],
  owned_text: ["a session belongs to its instance", "会话属于其实例"],
  not_promised: ["Not promised", "不承诺"],
  not_promised_text: ["exclusion at a resource that does not check fences", "不检查栅栏号的资源上的互斥"],
  not_shown: ["Not shown", "未显示"],

  // Tables
  name: ["Name", "名字"],
  mode: ["Mode", "方式"],
  holder: ["Holder", "持有者"],
  fence: ["Fence", "栅栏号"],
  held_for: ["Held for", "已持有"],
  time_to_live: ["Time to live", "剩余寿命"],
  line: ["Line", "队列"],
  oldest_wait: ["Oldest wait", "最久等待"],
  all: ["All", "全部"],
  contended: ["Contended", "有争用"],
  expiring_tab: ["Expiring", "即将到期"],
  foreign_tab: ["Foreign", "外部"],
  search_names: ["Search names", "搜索名字"],
  search_owners: ["Search owners", "搜索所有者"],
  x_of_y: ["{0} of {1}", "{0} / {1}"],
  no_match: ["Nothing matches", "没有匹配项"],
  exclusive: ["exclusive", "独占"],
  shared: ["shared", "共享"],
  readers: ["readers", "读者"],
  readers_n: ["readers ×{0}", "读者 ×{0}"],
  permits: ["permits", "许可"],
  permits_n: ["permits {0}/{1}", "许可 {0}/{1}"],
  free: ["free", "空闲"],
  reader: ["reader", "读"],
  writer: ["writer", "写"],

  // States and events
  s_held: ["held", "持有"],
  s_waiting: ["waiting", "等待"],
  s_expiring: ["expiring", "即将到期"],
  s_jeopardy: ["jeopardy: renewal overdue", "危险期：续约超时"],
  s_foreign: ["foreign client", "外部客户端"],
  s_free: ["free", "空闲"],
  e_queued: ["queued", "排队"],
  e_granted: ["granted", "授予"],
  e_released: ["released", "释放"],
  e_withdrawn: ["withdrawn", "撤回"],
  e_lost: ["lost", "丢失"],
  e_expired: ["expired", "过期"],
  e_evicted: ["evicted", "逐出"],
  e_label: ["label", "标签"],
  e_changed: ["changed", "变更"],
  e_store_up: ["store up", "存储恢复"],
  e_store_down: ["store down", "存储中断"],
  e_reset: ["gap", "缺口"],
  reset_text: ["events before this one may be missing", "此前的事件可能缺失"],
  waits: ["waits", "等待"],
  holds: ["holds", "持有"],
  another_client: ["another client", "其他客户端"],
  unnamed: ["unnamed client", "未具名客户端"],
  no_session: ["kept after its session", "会话结束后保留"],

  // One lock
  n_waiting: ["{0} waiting", "{0} 个等待"],
  typical_hold: ["Typical hold", "通常持有"],
  handovers: ["Grants", "授予"],
  holds_lock: ["Holds the lock", "持有锁"],
  readers_hold: ["{0} readers hold together", "{0} 个读者同时持有"],
  permits_taken: ["{0} of {1} permits taken", "已占用 {0} / {1} 个许可"],
  nothing_holds: ["Not held", "无人持有"],
  next_gets: ["The next to ask gets it at once.", "下一个请求者会立即得到它。"],
  closed_now: ["Closed: the store grants it to the next in line soon.", "暂时关闭：存储很快授予队列中的下一位。"],
  nothing_waits: ["No ticket waits", "没有票在等待"],
  seconds_left: ["of {0} s", "共 {0} 秒"],
  left: ["left", "剩余"],
  never_ends: ["no end", "无期限"],
  process: ["pid {0}", "pid {0}"],
  ticket: ["Ticket", "票"],
  label: ["Label", "标签"],
  overdue: ["renewal overdue", "续约超时"],
  ends_soon: ["ends soon unless renewed", "若不续约即将结束"],
  enter_together: ["enter together", "一起进入"],
  needs: ["needs {0}", "需要 {0}"],
  and_more: ["and {0} more", "另有 {0} 个"],
  more_holders: ["{0} more", "另有 {0} 个"],
  places: ["No. {0} – {1}, the oldest has waited {2}", "第 {0} – {1} 位，最久已等 {2}"],
  timeline: ["Timeline", "时间线"],
  line_length: ["line length", "队列长度"],
  seen_from: ["seen since {0}", "自 {0} 起可见"],
  now: ["now", "现在"],
  fence_history: ["Fence history", "栅栏号历史"],
  no_grants: ["No grants in 15 minutes.", "15 分钟内没有授予。"],
  no_fences: ["No fences: readers and permits have no order among themselves.", "没有栅栏号：读者和许可之间没有先后。"],
  cell: ["Cell", "单元"],

  // Evict
  evict: ["Evict…", "逐出…"],
  evict_who: ["Evict {0}?", "逐出 {0}？"],
  step: ["Step {0} of 2", "第 {0} 步，共 2 步"],
  which_ticket: ["Which ticket?", "哪一张票？"],
  go_on: ["Continue", "继续"],
  evict_now: ["Evict now", "立即逐出"],
  evict_learns: ["The holder learns of it with its next renewal.", "持有者会在下次续约时得知。"],
  evict_refused: ["check and cells refuse it at once; any other resource only after a newer holder has written.", "check 和单元立即拒绝它；其他资源要等新的持有者写入之后才会拒绝。"],
  next_in_line: ["Next in line: {0}", "下一位：{0}"],
  type_fence: ["Type the fence", "输入栅栏号"],
  type_ticket: ["Type the end of the ticket’s id", "输入票号末尾"],
  audited: ["Your name and the time go to the audit log.", "你的名字和时间会记入审计日志。"],
  evict_done: ["{0} was evicted", "已逐出 {0}"],
  evict_changed: ["The lock has changed hands: nothing was evicted. Look again before you go on.", "锁已经易手：没有逐出任何票。请重新查看后再继续。"],
  evict_gone: ["The ticket had already ended.", "该票已经结束。"],

  // Sessions
  owner: ["Owner", "所有者"],
  host: ["Host", "主机"],
  pid: ["Process", "进程"],
  its_locks: ["Locks", "锁"],
  n_holds: ["Holds", "持有"],
  n_waits: ["Waits", "等待"],
  since: ["Since", "起始"],
  holding: ["Holding", "持有中"],
  only_waiting: ["Waiting", "等待中"],
  sessions_note: ["Grouped by program, host and process", "按程序、主机和进程分组"],
  tickets_of: ["Tickets of {0}", "{0} 的票"],

  // Events
  pause: ["Pause", "暂停"],
  resume: ["Resume", "继续"],
  n_new: ["{0} new", "{0} 条新事件"],
  rates_note: ["events in 2 s, last 2 minutes", "每 2 秒事件数，最近 2 分钟"],
  waited: ["waited {0}", "等了 {0}"],
  held_time: ["held {0}", "持有 {0}"],
  no_events_yet: ["Nothing yet. Events appear here the moment they happen.", "暂无事件；一旦发生即刻显示。"],

  // Cells
  cell_name: ["Name of a cell", "单元的名字"],
  cell_read: ["Read", "读取"],
  cell_intro: ["A cell is a small value that only the holder of its lock can write. Type a name to read one.", "单元是只有锁的持有者才能写入的小值。输入名字即可读取。"],
  cell_none: ["No value has been written under this name.", "此名字下尚未写入任何值。"],
  cell_empty: ["The value is empty.", "值为空。"],
  cell_size: ["Size", "大小"],
  cell_bytes: ["{0} bytes", "{0} 字节"],
  cell_fence: ["Written under fence", "写入时的栅栏号"],
  cell_version: ["ETag", "ETag"],
  cell_present: ["written by the present holder", "由当前持有者写入"],
  cell_past: ["written under an earlier grant", "在较早的授予下写入"],
  cell_binary: ["not text: shown in hexadecimal", "非文本：以十六进制显示"],
  cells_seen: ["Looked at", "看过的"],
  cells_none_seen: ["Cells that you read are listed here until the page is closed.", "读过的单元列在这里，直到关闭页面。"],
  lock: ["Lock", "锁"],

  // Empty
  no_locks: ["No locks yet", "还没有锁"],
  first_lock: ["Take the first one. It appears here the moment it is granted.", "取得第一把锁，授予的那一刻它就会出现在这里。"],
  run_again: ["Run it again in a second terminal: it stands in line here until the first is done.", "在第二个终端再运行一次：它会在这里排队，直到第一个结束。"],
  with_command: ["With the command", "用命令行"],
  with_curl: ["With curl", "用 curl"],

  // Token
  token_title: ["This service asks for a token", "此服务要求令牌"],
  token_why: ["It is kept in this tab only, until the tab is closed, and travels in a header.", "令牌只保存在此标签页，关闭即失效，并只通过请求头发送。"],
  token_label: ["Token", "令牌"],
  token_wrong: ["The service has refused this token.", "服务拒绝了这个令牌。"],
  token_go: ["Sign in", "登录"],
  token_forget: ["Sign out", "退出登录"],
  refused: ["This token may not do that: {0}", "此令牌无权这样做：{0}"],

  // Keys
  k_search: ["Search", "搜索"],
  k_rows: ["Next, previous row", "下一行、上一行"],
  k_open: ["Open", "打开"],
  k_along: ["Along the line", "沿队列移动"],
  k_back: ["Back, close", "返回、关闭"],
  k_pause: ["Pause events", "暂停事件"],
  k_sheet: ["This sheet", "本表"],
};

const saved = () => {
  try {
    return localStorage.getItem("lockkeeper-lang");
  } catch {
    return null;
  }
};

let language = saved() || (navigator.language.startsWith("zh") ? "zh" : "en");

export const lang = () => language;

export function nextLanguage() {
  language = language === "zh" ? "en" : "zh";
  try {
    localStorage.setItem("lockkeeper-lang", language);
  } catch {
    // Storage is blocked: the choice lasts until the page is closed.
  }
}

/** The words of a key, with {0}, {1}… filled in. */
export function t(key, ...values) {
  const words = WORDS[key];
  if (!words) throw new Error(`no words for ${key}`);
  return words[language === "zh" ? 1 : 0].replace(/\{(\d)\}/g, (_, i) => values[i]);
}

/** Digits in groups of three. Takes text as well, for fences beyond 2^53. */
export const num = (n) => (typeof n === "number" ? String(Math.round(n)) : n).replace(/\B(?=(\d{3})+$)/g, "\u2009");

/** A fence where there is little room: its last digits, which tell it from its neighbours. */
export const fence = (text) => (text.length > 10 ? "…" + num(text.slice(-9)) : num(text));

const two = (n) => String(n).padStart(2, "0");

/** A duration in parts, so that a large figure can set its units small: [[4, "m"], ["12", "s"]]. */
export function parts(ms) {
  const [day, hour, minute, second] = language === "zh" ? "天时分秒" : "dhms";
  const s = Math.max(0, Math.floor(ms / 1e3));
  const m = Math.floor(s / 60);
  const hours = Math.floor(m / 60);
  if (ms < 995) return [[(Math.max(0, ms) / 1e3).toFixed(1), second]];
  if (s < 60) return [[s, second]];
  if (m < 60) return [[m, minute], [two(s % 60), second]];
  if (hours < 24) return [[hours, hour], [two(m % 60), minute]];
  return [[Math.floor(hours / 24), day], [hours % 24, hour]];
}

export const dur = (ms) => parts(ms).map((part) => part.join("\u2009")).join(" ");
export const clock = (at, length = 8) => new Date(at).toTimeString().slice(0, length);
