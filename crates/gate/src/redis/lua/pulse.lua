-- How a partition is, in one small question: who answers, can it be written, what waits, what changed, what
-- is kept. Where memory is short, what is kept for those who look back is the first thing to go.
--
-- KEYS  probe  backlog  orders  moves  given  settled  changed  kept  kept_bytes
-- ARGV  changes seen  probe_kept_ms
-- Answers {server, why it cannot be written, backlog, oldest_ms, open moves, notes of moves, changes,
-- {items changed since}, {kept bytes, age of the oldest kept in ms, 1 if memory is short}}. oldest_ms is -1
-- if nothing waits; changes is -1 if none was ever noted; the age is -1 if nothing is kept.
local memory = redis.call('INFO', 'memory')
local used = tonumber(string.match(memory, 'used_memory:(%d+)') or '0')
local most = tonumber(string.match(memory, 'maxmemory:(%d+)') or '0')
local short = most > 0 and used > most / 8 * 7
-- First of all, for after another write a full memory would not refuse it.
local written = redis.pcall('SET', KEYS[1], 1, 'PX', ARGV[2])
if short then redis.pcall('DEL', KEYS[8], KEYS[9]) end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '0'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- How long ago the first entry of a stream was put there; -1 if there is none.
local function age(stream)
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  return first and math.max(0, now - tonumber(string.match(first[1], '^(%d+)'))) or -1
end
local backlog = tonumber(redis.call('GET', KEYS[2]) or '0')
local oldest = backlog > 0 and age(KEYS[3]) or -1
local kept = tonumber(redis.call('GET', KEYS[9]) or '0')
local changes, items = tonumber(redis.call('ZSCORE', KEYS[7], '') or '-1'), {}
if changes > tonumber(ARGV[1]) then
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], '(' .. ARGV[1], '+inf')) do
    if item ~= '' then items[#items + 1] = tonumber(item) end
  end
end
-- As a number that needs no more digits than Lua has.
return {tonumber(string.sub(server, 1, 12), 16), written.err or '', backlog, oldest,
  redis.call('HLEN', KEYS[4]), redis.call('EXISTS', KEYS[5], KEYS[6]), changes, items,
  {kept, kept > 0 and age(KEYS[8]) or -1, short and 1 or 0}}
