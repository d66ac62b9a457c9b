-- Ends a cycle that did not commit. What Redis knows of an abort comes before what the worker believes: a cycle that is aborted
-- ends in no other way, and one that is not is not consumed. A deferred interrupt counts: the shield ends with the cycle.
-- ARGV: room, ticket, how, next, max attempts, shielded, state (as for commit), closing output's body or '', error, retry ms,
--       code (what became of the agent's code, for the event)
--   consume  the abort was an interrupt: the message has ended. May carry new state and a closing output
--   release  stopped, or given back at shutdown: the attempt is refunded
--   too_new  this worker is too old for what it found: the attempt is refunded; from the retry time on any worker may try
--   fail     the attempt stays charged; the room keeps its worker, unless that is superseded, and waits until the retry time
--   reject   to the dead letters at once
-- Answers: {'fenced'} | {'interrupt'} | {'stop'} (aborted: to be settled by consume, by release) | {'refused'} (consume without
-- an interrupt) | {'settled'} | {'released', of too_new why, the first time} | {'failed', ms} | what was taken, as for claim. A room that may not run answers
-- {'held'}. When it has settled, the answer ends with the names of the events.
-- Events: cycle.interrupted, cycle.stopped, cycle.released, cycle.failed, message.dead, message.newer
local room, ticket, how, code = ARGV[1], ARGV[2], ARGV[3], ARGV[11]
local h = load(room)
local before = answered(h, ticket)
if before then return before end
if h.cycle ~= ticket then return { 'fenced', '' } end

local ask = { request = ticket, next = ARGV[4], max_attempts = ARGV[5], shielded = ARGV[6] }
local abort = aborted(h)
if abort == 'interrupt' and how ~= 'consume' or abort == 'stop' and how ~= 'release' then return { abort, '' } end
if how == 'consume' and not abort then return { 'refused', '' } end

local id, seq, attempt = h.processing, next_seq(h), tonumber(h.attempt)
end_cycle(h)
if how == 'consume' then
  local state = ARGV[7]
  if state:sub(1, 1) == '+' then call('SET', room_key(room) .. ':state', state:sub(2))
  elseif state == '-' then call('DEL', room_key(room) .. ':state') end
  if ARGV[8] ~= '' then
    output(room, 'chunk', id, ticket, seq, ARGV[8], 'closing', '1') -- relays do not withhold this one
    seq = seq + 1
  end
  consume(h, id, ticket, seq, code)
elseif how == 'release' or how == 'too_new' then
  h.attempt = tostring(attempt - 1)
  -- What is put off is tried often: it is not to fill the outbox, if nothing of it is there.
  if how == 'release' or seq > 1 then output(room, 'aborted', id, ticket, seq, '', 'mode', abort or 'release') end
  if how == 'release' then
    cycle_event(abort and 'cycle.stopped' or 'cycle.released', h, id, ticket, 'code', code)
  else
    put_off(h, id, ARGV[9], tonumber(ARGV[10]))
    ask.next = ''
  end
elseif how == 'reject' then
  local entry = call('XRANGE', messages_key(room), id, id)[1]
  dead_letter(h, id, entry[2], ARGV[9])
else
  h.last_error = ARGV[9]
  output(room, 'failed', id, ticket, seq, '', 'error', ARGV[9])
  cycle_event('cycle.failed', h, id, ticket, 'attempt', attempt, 'error', ARGV[9])
  local wait = attempt < tonumber(ask.max_attempts) and tonumber(ARGV[10]) or 0
  if wait > 0 then h.retry_at = iso(now_ms + wait) end
  if ask.next == '1' and not (h.mode or agent_mode() or superseded(h, ticket)) then
    h.phase = 'backoff'
    remember(h, ticket, 'failed ' .. wait)
    save(h)
    return told({ 'failed', string.format('%d', wait) })
  end
end
return told(go_on(h, ask))
